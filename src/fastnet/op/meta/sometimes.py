"""An op that runs with a probability."""

from __future__ import annotations

from typing import Any

from fastnet.errors import shorten
from fastnet.op.checks import is_number
from fastnet.op.meta.meta_op import SingleMetaOp
from fastnet.types import Forward, State


class SometimesOp(SingleMetaOp):
    """Run an op with a probability, drawn in each step."""

    resolved_from = ("prob",)

    def __init__(self, op: Any, prob: float = 0.5) -> None:
        self.check_ops([op])
        if not is_number(prob) or not 0 <= prob <= 1:
            raise ValueError(f"Sometimes's prob must be from 0 to 1, not {shorten(prob)}.")
        self.extra_inputs = [key for key in op.outputs if key not in op.inputs]
        super().__init__([op], [*op.inputs, *self.extra_inputs], op.outputs)
        self.prob = prob

    def _anew(self, own: Any) -> Any:
        return own(self.op, self.prob)

    def make_run(self, option: Any) -> Forward:
        """Return the function that runs the op, or returns its outputs as they were."""
        run = self.chain(self.inputs, self.outputs, option)
        indices = [self.inputs.index(key) for key in self.outputs]

        def skip(data: list[Any], state: State) -> list[Any]:
            return [data[index] for index in indices]

        return self.choose(self.prob, run, skip)
