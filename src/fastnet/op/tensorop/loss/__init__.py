"""Losses."""

from typing import TYPE_CHECKING

from fastnet.util.lazy import attach

if TYPE_CHECKING:
    from fastnet.op.tensorop.loss.cross_entropy import CrossEntropy
    from fastnet.op.tensorop.loss.loss import LossOp
    from fastnet.op.tensorop.loss.mean_squared_error import MeanSquaredError

__all__ = ["CrossEntropy", "LossOp", "MeanSquaredError"]

__getattr__, __dir__ = attach(
    __name__,
    {
        "CrossEntropy": "cross_entropy",
        "LossOp": "loss",
        "MeanSquaredError": "mean_squared_error",
    },
)
