"""Learning rates, as FastEstimator reads and prints them."""

from __future__ import annotations

from typing import Any

import numpy as np

import fastnet.backend
from fastnet.backend.dispatch import framework_of

__all__ = ["get_lr"]


def get_lr(model: Any) -> Any:
    """Read the learning rate of a model's current optimizer.

    Args:
        model: A model that was built.

    Returns:
        The rate: in torch a float; in TensorFlow, where optimizers have it in single precision, a
        number of that type, so that logs show 0.001 and not the digits behind it.

    Raises:
        AssertionError: If the model was not built, or has no optimizer.
        ValueError: If the model is of no known framework.
    """
    rate = fastnet.backend.get_lr(model)
    return np.float32(rate) if framework_of(model) == "tf" else rate
