"""A numpy op that runs several times."""

from __future__ import annotations

from fastnet.op.meta_op import RepeatOp
from fastnet.op.numpyop.meta.meta_op import NumpyMetaOp

__all__ = ["Repeat"]


class Repeat(RepeatOp, NumpyMetaOp):
    """Run a numpy op several times, or while a condition holds.

    See `fastnet.op.tensorop.meta.Repeat` for the errors.

    Args:
        op: The op.
        repeat: The number of times; or a condition, with arguments named after the keys that it
            reads. It is called after each run, so that the op runs at least once.
        max_iter: The maximum number of times for a condition. None for no limit.

    >>> from fastnet.op.numpyop import LambdaOp
    >>> double = LambdaOp(lambda x: 2 * x, "x", "x")
    >>> Repeat(double, repeat=3).forward([1], {})
    [8]
    >>> Repeat(double, repeat=lambda x: x < 100).forward([1], {})
    [128]
    """
