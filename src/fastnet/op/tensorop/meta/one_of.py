"""One op of several, drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastnet.op.meta_op import OneOfOps
from fastnet.op.tensorop.meta.meta_op import TensorMetaOp

__all__ = ["OneOf"]


class OneOf(OneOfOps, TensorMetaOp):
    """Run one of several ops, drawn at random in each step.

    Args:
        tensor_ops: The ops. They share their inputs, outputs, modes and dataset ids.
        probs: The probability of each op, with a sum of 1. None for equal probabilities.

    Raises:
        ValueError: If there is no op.
        AssertionError: If inputs, outputs, modes or dataset ids differ, or `probs` is not one
            probability for each op.
        TypeError: If something is not a tensor op.

    >>> from fastnet.op.tensorop import LambdaOp
    >>> import torch
    >>> ops = [LambdaOp(lambda x, n=n: x + n, "x", "x") for n in (1, 2)]
    >>> OneOf(*ops, probs=[0.0, 1.0]).forward([torch.tensor(0)], {})
    tensor(2)
    """

    def __init__(self, *tensor_ops: Any, probs: Sequence[float] | None = None) -> None:
        super().__init__(*tensor_ops, probs=probs)
        if self.probs is None:
            self.probs = [1 / len(tensor_ops)] * len(tensor_ops)
