"""One numpy op of several, drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastnet.op.meta_op import OneOfOps
from fastnet.op.numpyop.meta.meta_op import NumpyMetaOp

__all__ = ["OneOf"]


class OneOf(OneOfOps, NumpyMetaOp):
    """Run one of several numpy ops, drawn at random for each sample or batch.

    See `fastnet.op.tensorop.meta.OneOf` for the errors.

    Args:
        numpy_ops: The ops. They share their inputs, outputs, modes and dataset ids.
        probs: The probability of each op, with a sum of 1. None for equal probabilities.

    >>> from fastnet.op.numpyop import LambdaOp
    >>> ops = [LambdaOp(lambda x, n=n: x + n, "x", "x") for n in (1, 2)]
    >>> OneOf(*ops, probs=[0.0, 1.0]).forward([0], {})
    2
    """

    def __init__(self, *numpy_ops: Any, probs: Sequence[float] | None = None) -> None:
        super().__init__(*numpy_ops, probs=probs)
