"""Schedulers of learning rates that step after the updates of captured steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from fastnet.backend.model_metadata import get_metadata
from fastnet.errors import describe_op
from fastnet.network.torch.compiled.uncapturable import Uncapturable
from fastnet.op.tensorop.model.lr_schedule import LRSchedule


@contextmanager
def noting(ops: Sequence[Any]) -> Iterator[list[LRSchedule]]:
    """Take down which ops would step their schedulers while ops are traced, and let none do so."""
    noted: list[LRSchedule] = []
    with ExitStack() as stack:
        for op in ops:
            if isinstance(op, LRSchedule):
                own = vars(op)
                if "advance" in own:
                    stack.callback(own.__setitem__, "advance", own["advance"])
                else:
                    stack.callback(own.pop, "advance")
                own["advance"] = partial(noted.append, op)
        yield noted


def require_once(noted: Sequence[LRSchedule], ops: Sequence[Any], taken: dict[int, int]) -> None:
    """Refuse schedulers that step between several updates of one step."""
    for op in noted:
        if (
            taken.get(id(get_metadata(op.model, "current_optimizer")), 0) != 1
            or noted.count(op) > 1
        ):
            place = next(at for at, one in enumerate(ops) if one is op)
            raise Uncapturable(
                f"{describe_op(op, place)} steps a scheduler between several updates of a step"
            )
