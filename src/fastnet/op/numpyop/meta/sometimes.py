"""A numpy op with a probability."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastnet.op.around import AroundOne
from fastnet.op.meta_checks import require_prob
from fastnet.op.numpyop.meta.meta_op import MetaNumpyOp
from fastnet.types import State

__all__ = ["Sometimes"]


class Sometimes(AroundOne, MetaNumpyOp):
    """Runs a numpy op for some samples or batches, drawn anew for each.

    For the others its outputs stay what they were, so that they must be there before: an op in
    front can give a key its first value.

    Args:
        numpy_op: The op.
        prob: How likely it is to run, from 0 to 1.

    Raises:
        TypeError: If `numpy_op` is no numpy op.
        ValueError: If it is a Batch, or `prob` is no probability.

    >>> from fastnet.op.numpyop import LambdaOp
    >>> op = Sometimes(LambdaOp(lambda x: x + 1, "x", "y"), prob=1.0)
    >>> op.inputs, op.forward([1, 0], {})
    (['x', 'y'], [2])
    """

    resolved_from = ("prob",)

    def __init__(self, numpy_op: Any, prob: float = 0.5) -> None:
        self.require_ops([numpy_op])
        require_prob(prob)
        self.extra_inputs = [key for key in numpy_op.outputs if key not in numpy_op.inputs]
        super().__init__([numpy_op], list(numpy_op.inputs) + self.extra_inputs, numpy_op.outputs)
        self.prob = prob

    def _anew(self, own: Any) -> Sometimes:
        made: Sometimes = own(self.op, self.prob)
        return made

    def run(self, data: list[Any], state: State, batched: str | None) -> Any:
        """Run the op, or leave its outputs as they are; drawn with numpy's global generator.

        Args:
            data: The values of the inputs.
            state: The context.
            batched: "np" for a batch, None for a sample.

        Returns:
            The values of the outputs, or what leaves the data out.
        """
        store = dict(zip(self.inputs, data, strict=True))
        if self.prob > np.random.uniform():
            return self.run_ops(self.ops, store, state, batched)
        return [store[key] for key in self.outputs]
