"""A tensor op that runs several times."""

from __future__ import annotations

from fastnet.op.meta_op import RepeatOp
from fastnet.op.tensorop.meta.meta_op import TensorMetaOp

__all__ = ["Repeat"]


class Repeat(RepeatOp, TensorMetaOp):
    """Run an op several times, or while a condition holds.

    Args:
        op: The op.
        repeat: The number of times; or a condition, with arguments named after the keys that it
            reads. It is called after each run, so that the op runs at least once.
        max_iter: The maximum number of times for a condition. None for no limit.

    Raises:
        TypeError: If `op` is not a tensor op, or `repeat` is neither an int nor a function.
        ValueError: If `repeat` or `max_iter` is less than 1, or `max_iter` is given with an int.

    >>> from fastnet.op.tensorop import LambdaOp
    >>> import torch
    >>> double = LambdaOp(lambda x: 2 * x, "x", "x")
    >>> Repeat(double, repeat=3).forward([torch.tensor(1)], {})
    [tensor(8)]
    >>> Repeat(double, repeat=lambda x: x < 100).forward([torch.tensor(1)], {})
    [tensor(128)]
    """
