"""A numpy op that runs with a probability."""

from __future__ import annotations

from typing import Any

from fastnet.op.meta_op import SometimesOp
from fastnet.op.numpyop.meta.meta_op import NumpyMetaOp

__all__ = ["Sometimes"]


class Sometimes(SometimesOp, NumpyMetaOp):
    """Run a numpy op with a probability, drawn for each sample or batch.

    Otherwise its outputs stay as they are, so that they must exist before the op. See
    `fastnet.op.tensorop.meta.Sometimes` for the errors.

    Args:
        numpy_op: The op.
        prob: The probability that it runs, from 0 to 1.

    >>> from fastnet.op.numpyop import LambdaOp
    >>> op = Sometimes(LambdaOp(lambda x: x + 1, "x", "y"), prob=1.0)
    >>> op.inputs, op.forward([1, 0], {})
    (['x', 'y'], [2])
    """

    def __init__(self, numpy_op: Any, prob: float = 0.5) -> None:
        super().__init__(numpy_op, prob)
