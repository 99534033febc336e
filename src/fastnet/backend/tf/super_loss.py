"""The sample weights of SuperLoss, and the moving average of its threshold, in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from fastnet.backend.lambert import LOG_CONFIDENCE_AT_MIN, MIN_BETA
from fastnet.backend.tf.math import lambertw


class MovingAverage:
    """An exponential moving average of scalars."""

    def __init__(self, rate: float = 0.1) -> None:
        self._rate = rate
        with tf.init_scope():
            self._mean = tf.Variable(0.0, trainable=False)
            self._started = tf.Variable(False, trainable=False)

    def update(self, value: tf.Tensor, may_initialize: bool) -> tf.Tensor:
        """Include a scalar and return the detached average.

        Args:
            value: The scalar.
            may_initialize: Whether this value may start the average.
        """
        dtype = value.dtype
        value = tf.stop_gradient(tf.cast(value, tf.float32))
        mean = self._mean.read_value()
        mean = tf.where(self._started.read_value(), mean - self._rate * (mean - value), value)
        self._mean.assign(mean)
        if may_initialize:
            self._started.assign(True)
        return tf.cast(tf.stop_gradient(mean), dtype)

    @property
    def value(self) -> float | None:
        """The average, or None before the first value."""
        return float(self._mean.numpy()) if self._started.numpy() else None

    @value.setter
    def value(self, value: float | None) -> None:
        self._mean.assign(value or 0.0)
        self._started.assign(value is not None)


def weigh(excess: tf.Tensor, regularization: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Weigh losses, minus the threshold, by the confidence in them; return both."""
    beta = excess if regularization == 1 else excess / regularization
    # W is steep at its cut-off, so the value there is a constant and not a rounded result.
    log_at_min = tf.constant(LOG_CONFIDENCE_AT_MIN, beta.dtype)
    log = -lambertw(tf.multiply(tf.maximum(beta, MIN_BETA), 0.5))
    log = tf.where(tf.less(beta, MIN_BETA), log_at_min, log)
    confidence = tf.exp(log)
    squared = tf.pow(log, 2.0)
    if regularization != 1:
        squared = tf.multiply(squared, float(regularization))
    return _weighed(excess, confidence, squared), confidence


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _weighed(
    excess: tf.Tensor, confidence: tf.Tensor, squared: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, None, None]]]:
    """Compute the minimum of the weighed loss over confidences; its gradient is the confidence.

    The derivative with respect to the confidence is 0 at the minimum. Rounding would leave more
    than 1e-4 of it where the confidence is steep, so it is left out.
    """

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None, None]:
        return tf.multiply(upstream, confidence), None, None

    return tf.add(tf.multiply(excess, confidence), squared), gradient
