"""One op of several."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from functools import partial
from typing import Any

from fastnet.op.checks import shares_of
from fastnet.op.tensorop.meta.meta_op import MetaOp, forward_of
from fastnet.types import Forward, State


class OneOf(MetaOp):
    """Runs one of several ops, drawn anew in each step.

    Args:
        tensor_ops: The ops. They share their inputs, outputs, modes and dataset ids.
        probs: How likely each is, together 1. None for all alike.

    Raises:
        ValueError: If there is no op, or they differ in their modes or dataset ids.
        AssertionError: If they differ in their inputs or outputs, or the probabilities are not one
            for each, from 0, together 1.
        TypeError: If something is no op.

    >>> from fastnet.op.tensorop import LambdaOp
    >>> import torch
    >>> ops = [LambdaOp(lambda x, n=n: x + n, "x", "x") for n in (1, 2)]
    >>> OneOf(*ops, probs=[0.0, 1.0]).forward([torch.tensor(0)], {})
    tensor(2)
    """

    def __init__(self, *tensor_ops: Any, probs: Sequence[float] | None = None) -> None:
        self.require_ops(tensor_ops)
        first = tensor_ops[0]
        for place, op in enumerate(tensor_ops):
            for name in ("inputs", "outputs", "in_list", "out_list"):
                if getattr(op, name) != getattr(first, name):
                    raise AssertionError(
                        f"The ops of OneOf share their {name}, but its op 0 has "
                        f"{getattr(first, name)} and its op {place} {getattr(op, name)}."
                    )
        count = len(tensor_ops)
        given: Any = probs
        alike = given is None or (isinstance(given, Sized) and len(given) == 0)
        shares = [1 / count] * count if alike else shares_of(probs, count)
        if shares is None:
            raise AssertionError(
                f"OneOf's probs are one for each of its {count} ops, from 0, together 1, not "
                f"{probs!r}."
            )
        self.probs = shares
        super().__init__(tensor_ops, first.inputs, first.outputs)
        self.in_list, self.out_list = first.in_list, first.out_list

    def make_run(self, retain_graph: bool) -> Forward:
        """Settle what runs an op.

        Args:
            retain_graph: Whether a later op takes gradients of the same graph.

        Returns:
            What takes the value of the input, or a list of values, and gives the output's.
        """
        forwards = [forward_of(op, retain_graph) for op in self.ops]
        probs = self.probs

        def run(data: Any, state: State) -> Any:
            branches = [partial(forward, data, state) for forward in forwards]
            return self.control_for(data).one_of(probs, branches)

        return run
