"""Several ops as one."""

from __future__ import annotations

from fastnet.op.meta_op import FuseOps
from fastnet.op.tensorop.meta.meta_op import TensorMetaOp

__all__ = ["Fuse"]


class Fuse(FuseOps, TensorMetaOp):
    """Run ops in order, as one op: for a scheduler, or inside of another meta op.

    The inputs are the keys that an op reads and no earlier op has written; the outputs are all keys
    that the ops write and do not delete.

    Args:
        ops: The ops, in order. They share their modes and dataset ids.

    Raises:
        ValueError: If there is no op, or the modes or dataset ids differ.
        TypeError: If something is not a tensor op.

    >>> from fastnet.op.tensorop import LambdaOp
    >>> op = Fuse([LambdaOp(lambda x: x + 1, "x", "y"), LambdaOp(lambda y: y * 2, "y", "z")])
    >>> op.inputs, op.outputs, op.forward([1], {})
    (['x'], ['y', 'z'], [2, 4])
    """
