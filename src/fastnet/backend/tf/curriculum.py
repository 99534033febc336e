"""Confidence weights of SuperLoss on TensorFlow tensors."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from fastnet.backend.numpy.lambertw import LEAST, LEAST_LOG
from fastnet.backend.tf.lambertw import lambertw

__all__ = ["weigh"]


def weigh(excess: tf.Tensor, regularization: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Weigh losses by the confidence in them."""
    beta = excess if regularization == 1 else excess / regularization
    # steep where it is cut off, so that a rounded end would not do
    least = tf.constant(LEAST_LOG, beta.dtype)
    log = -lambertw(tf.multiply(tf.maximum(beta, LEAST), 0.5))
    log = tf.where(tf.less(beta, LEAST), least, log)
    confidence = tf.exp(log)
    squared = tf.pow(log, 2.0)
    if regularization != 1:
        squared = tf.multiply(squared, float(regularization))
    return _weighed(excess, confidence, squared), confidence


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _weighed(
    excess: tf.Tensor, confidence: tf.Tensor, squared: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, None, None]]]:
    """Add up the least that confidences can make of losses.

    Its slope by the confidence is 0, of which rounding would leave more than a ten-thousandth
    where the confidence is steep; what is left is the confidence itself.
    """

    def gradient(of_weighed: tf.Tensor) -> tuple[tf.Tensor, None, None]:
        return tf.multiply(of_weighed, confidence), None, None

    return tf.add(tf.multiply(excess, confidence), squared), gradient
