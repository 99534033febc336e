"""Ops that compute gradients."""

from typing import TYPE_CHECKING

from fastnet.util.lazy import attach

if TYPE_CHECKING:
    from fastnet.op.tensorop.gradient.fgsm import FGSM
    from fastnet.op.tensorop.gradient.gradient import GradientOp
    from fastnet.op.tensorop.gradient.watch import Watch

__all__ = ["FGSM", "GradientOp", "Watch"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__, {"FGSM": "fgsm", "GradientOp": "gradient", "Watch": "watch"}
    )
