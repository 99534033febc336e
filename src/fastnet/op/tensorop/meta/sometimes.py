"""A tensor op that runs with a probability."""

from __future__ import annotations

from typing import Any

from fastnet.op.meta_op import SometimesOp
from fastnet.op.tensorop.meta.meta_op import TensorMetaOp

__all__ = ["Sometimes"]


class Sometimes(SometimesOp, TensorMetaOp):
    """Run an op with a probability, drawn in each step.

    In other steps its outputs stay as they are, so that they must exist before the op.

    Args:
        tensor_op: The op.
        prob: The probability that it runs, from 0 to 1.

    Raises:
        TypeError: If `tensor_op` is not a tensor op.
        ValueError: If `prob` is not a probability.

    >>> from fastnet.op.tensorop import LambdaOp
    >>> import torch
    >>> op = Sometimes(LambdaOp(lambda x: x + 1, "x", "y"), prob=1.0)
    >>> op.inputs, op.forward([torch.tensor(1), torch.tensor(0)], {})
    (['x', 'y'], [tensor(2)])
    """

    def __init__(self, tensor_op: Any, prob: float = 0.5) -> None:
        super().__init__(tensor_op, prob)
