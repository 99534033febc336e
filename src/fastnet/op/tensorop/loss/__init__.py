"""Losses."""

from typing import TYPE_CHECKING

from fastnet.util.lazy import attach

if TYPE_CHECKING:
    from fastnet.op.tensorop.loss.cross_entropy import CrossEntropy
    from fastnet.op.tensorop.loss.dice_loss import DiceLoss
    from fastnet.op.tensorop.loss.focal_loss import FocalLoss
    from fastnet.op.tensorop.loss.hinge import Hinge
    from fastnet.op.tensorop.loss.l1_loss import L1_Loss
    from fastnet.op.tensorop.loss.l2_regularization import L2Regularization, L2Regularizaton
    from fastnet.op.tensorop.loss.loss import LossOp
    from fastnet.op.tensorop.loss.mean_squared_error import MeanSquaredError
    from fastnet.op.tensorop.loss.super_loss import SuperLoss

__all__ = [
    "CrossEntropy",
    "DiceLoss",
    "FocalLoss",
    "Hinge",
    "L1_Loss",
    "L2Regularization",
    "L2Regularizaton",
    "LossOp",
    "MeanSquaredError",
    "SuperLoss",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "CrossEntropy": "cross_entropy",
            "DiceLoss": "dice_loss",
            "FocalLoss": "focal_loss",
            "Hinge": "hinge",
            "L1_Loss": "l1_loss",
            "L2Regularization": "l2_regularization",
            "L2Regularizaton": "l2_regularization",
            "LossOp": "loss",
            "MeanSquaredError": "mean_squared_error",
            "SuperLoss": "super_loss",
        },
    )
