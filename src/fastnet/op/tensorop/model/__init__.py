"""Ops that run models and update them."""

from typing import TYPE_CHECKING

from fastnet.util.lazy import attach

if TYPE_CHECKING:
    from fastnet.op.tensorop.model.ema import EMA
    from fastnet.op.tensorop.model.lr_schedule import LRSchedule
    from fastnet.op.tensorop.model.model import ModelOp
    from fastnet.op.tensorop.model.update import UpdateOp

__all__ = ["EMA", "LRSchedule", "ModelOp", "UpdateOp"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__,
        {"EMA": "ema", "LRSchedule": "lr_schedule", "ModelOp": "model", "UpdateOp": "update"},
    )
