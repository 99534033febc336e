"""One op of several, drawn at random."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from functools import partial
from typing import Any

from fastnet.errors import shorten
from fastnet.op.checks import is_number
from fastnet.op.meta.meta_op import MetaOp
from fastnet.types import Forward, State


class OneOfOps(MetaOp):
    """Run one of several ops, drawn at random in each step."""

    resolved_from = ("probs",)

    def __init__(self, *ops: Any, probs: Sequence[float] | None = None) -> None:
        self.check_ops(ops, AssertionError)
        first = ops[0]
        for index, op in enumerate(ops):
            for name in ("inputs", "outputs", "in_list", "out_list"):
                if getattr(op, name) != getattr(first, name):
                    raise AssertionError(
                        f"The ops of OneOf must share their {name}, but its op 0 has "
                        f"{getattr(first, name)} and its op {index} {getattr(op, name)}."
                    )
        self.probs = _read_probabilities(probs, len(ops))
        super().__init__(ops, first.inputs, first.outputs)
        self.in_list, self.out_list = first.in_list, first.out_list

    def _anew(self, own: Any) -> Any:
        return own(*self.ops, probs=self.probs)

    def make_run(self, option: Any) -> Forward:
        """Return the function that runs one of the ops."""
        forwards = [self.forward_of(op, option) for op in self.ops]
        probs = self.probs

        def run(data: Any, state: State) -> Any:
            branches = [partial(forward, data, state) for forward in forwards]
            return self.control(data).one_of(probs, branches)

        return run


def _read_probabilities(probs: Any, count: int) -> list[float] | None:
    """Return one probability for each op, or None if none are given."""
    if probs is None or (isinstance(probs, Sized) and len(probs) == 0):
        return None
    shares = list(probs) if isinstance(probs, Iterable) else []
    # The comparisons are written so that NaN fails them.
    if not (
        len(shares) == count
        and all(map(is_number, shares))
        and min(shares) >= 0
        and abs(sum(shares) - 1) <= 1e-8
    ):
        raise AssertionError(
            f"OneOf's probs must be one probability for each of its {count} ops, with a sum of 1, "
            f"not {shorten(probs)}."
        )
    return shares
