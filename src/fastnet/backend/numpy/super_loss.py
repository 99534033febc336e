"""The sample weights of SuperLoss, on numpy arrays."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastnet.backend.numpy.lambertw import lambertw

__all__ = ["LEAST", "LEAST_LOG", "weigh"]

Array: TypeAlias = NDArray[Any]

# Slightly more than -2 / e, where the confidence ends, and the confidence's logarithm there.
LEAST = -1.9999998 / math.e
LEAST_LOG = 0.9995528530578068


def weigh(excess: Array, regularization: float) -> tuple[Array, Array]:
    """Weigh losses by the confidence in them, the less the larger they are.

    Args:
        excess: By how much losses are above a threshold, of any shape.
        regularization: How little they are told apart.

    Returns:
        The weighed losses, and the confidences, both of the same shape.
    """
    beta = excess / regularization
    log = np.where(beta < LEAST, LEAST_LOG, -lambertw(0.5 * np.maximum(beta, LEAST)))
    log = log.astype(beta.dtype)
    confidence = np.exp(log)
    return excess * confidence + regularization * log**2, confidence
