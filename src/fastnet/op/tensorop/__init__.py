"""Ops on tensors."""

from typing import TYPE_CHECKING

from fastnet.util.lazy import attach

if TYPE_CHECKING:
    from fastnet.op.tensorop import loss as loss
    from fastnet.op.tensorop import model as model
    from fastnet.op.tensorop.tensorop import Delete, LambdaOp, TensorOp

__all__ = ["Delete", "LambdaOp", "TensorOp", "loss", "model"]

__getattr__, __dir__ = attach(
    __name__,
    {"Delete": "tensorop", "LambdaOp": "tensorop", "TensorOp": "tensorop"},
    submodules=("loss", "model"),
)
