"""Learning rates in the types that FastEstimator returns."""

from __future__ import annotations

from typing import Any

import numpy as np

import fastnet.backend
from fastnet.backend.dispatch import framework_of
from fastnet.types import Model

__all__ = ["get_lr"]


def get_lr(model: Model) -> Any:
    """Return the learning rate of a model's current optimizer.

    Args:
        model: A model from `build`.

    Returns:
        A float in torch, and a float32 in TensorFlow, so that logs show the digits of the rate that
        was set (0.001).

    Raises:
        AssertionError: If the model is not from `build`, or has no optimizer.
        ValueError: If the framework of the model is unknown.
    """
    rate = fastnet.backend.get_lr(model)
    return np.float32(rate) if framework_of(model) == "tf" else rate
