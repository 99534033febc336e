"""Ops on tensors."""

from typing import TYPE_CHECKING

from fastnet.util.lazy import attach

if TYPE_CHECKING:
    from fastnet.op.tensorop import augmentation as augmentation
    from fastnet.op.tensorop import gradient as gradient
    from fastnet.op.tensorop import loss as loss
    from fastnet.op.tensorop import meta as meta
    from fastnet.op.tensorop import model as model
    from fastnet.op.tensorop.argmax import Argmax
    from fastnet.op.tensorop.average import Average
    from fastnet.op.tensorop.gather import Gather
    from fastnet.op.tensorop.normalize import Normalize
    from fastnet.op.tensorop.permute import Permute
    from fastnet.op.tensorop.reshape import Reshape
    from fastnet.op.tensorop.resize3d import Resize3D
    from fastnet.op.tensorop.tensorop import Delete, LambdaOp, TensorOp
    from fastnet.op.tensorop.un_hadamard import UnHadamard

__all__ = [
    "Argmax",
    "Average",
    "Delete",
    "Gather",
    "LambdaOp",
    "Normalize",
    "Permute",
    "Reshape",
    "Resize3D",
    "TensorOp",
    "UnHadamard",
    "augmentation",
    "gradient",
    "loss",
    "meta",
    "model",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "Argmax": "argmax",
            "Average": "average",
            "Delete": "tensorop",
            "Gather": "gather",
            "LambdaOp": "tensorop",
            "Normalize": "normalize",
            "Permute": "permute",
            "Reshape": "reshape",
            "Resize3D": "resize3d",
            "TensorOp": "tensorop",
            "UnHadamard": "un_hadamard",
        },
        submodules=("augmentation", "gradient", "loss", "meta", "model"),
    )
