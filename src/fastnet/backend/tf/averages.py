"""Averages that go along with training, in TensorFlow."""

from __future__ import annotations

import tensorflow as tf

__all__ = ["MovingAverage"]


class MovingAverage:
    """A mean of values that forgets the old ones.

    Args:
        rate: How much of a new value goes into it.
    """

    def __init__(self, rate: float = 0.1) -> None:
        self._rate = rate
        with tf.init_scope():
            self._mean = tf.Variable(0.0, trainable=False)
            self._started = tf.Variable(False, trainable=False)

    def update(self, value: tf.Tensor, keep: bool) -> tf.Tensor:
        """Take a value into the mean.

        Args:
            value: The value, a scalar.
            keep: Whether this can be the first value that counts.

        Returns:
            The mean, which no gradient goes through.
        """
        dtype = value.dtype
        value = tf.stop_gradient(tf.cast(value, tf.float32))
        mean = self._mean.read_value()
        mean = tf.where(self._started.read_value(), mean - self._rate * (mean - value), value)
        self._mean.assign(mean)
        if keep:
            self._started.assign(True)
        return tf.cast(tf.stop_gradient(mean), dtype)

    @property
    def value(self) -> float | None:
        """The mean, None as long as nothing counts."""
        return float(self._mean.numpy()) if self._started.numpy() else None

    @value.setter
    def value(self, value: float | None) -> None:
        self._mean.assign(value or 0.0)
        self._started.assign(value is not None)
