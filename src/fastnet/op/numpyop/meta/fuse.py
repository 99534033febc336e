"""Several numpy ops as one."""

from __future__ import annotations

from fastnet.op.meta_op import FuseOps
from fastnet.op.numpyop.meta.meta_op import NumpyMetaOp

__all__ = ["Fuse"]


class Fuse(FuseOps, NumpyMetaOp):
    """Run numpy ops in order, as one op. See `fastnet.op.tensorop.meta.Fuse`.

    Args:
        ops: The ops, in order. They share their modes and dataset ids.

    Raises:
        ValueError: If there is no op, one of them is a Batch, or the modes or dataset ids differ.
        TypeError: If something is not a numpy op.

    >>> from fastnet.op.numpyop import LambdaOp
    >>> op = Fuse([LambdaOp(lambda x: x + 1, "x", "y"), LambdaOp(lambda y: y * 2, "y", "z")])
    >>> op.inputs, op.outputs, op.forward([1], {})
    (['x'], ['y', 'z'], [2, 4])
    """
