"""The Lambert W function of TensorFlow tensors, and its derivative."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from fastnet.backend.lambert import Functions, slope, solve

__all__ = ["lambertw"]

_FUNCTIONS = Functions(tf.exp, tf.math.log1p, tf.sqrt, tf.maximum, tf.where)


def lambertw(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.dtype in (tf.float16, tf.bfloat16):
        return tf.cast(_lambertw(tf.cast(tensor, tf.float32)), tensor.dtype)
    return _lambertw(tf.convert_to_tensor(tensor))


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _lambertw(z: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    digits = 53 if z.dtype == tf.float64 else 24

    def gradient(of_w: tf.Tensor) -> tf.Tensor:
        # Computed again, so that the gradient is differentiable.
        return of_w * slope(z, _lambertw(z), digits, _FUNCTIONS)

    return solve(z, digits, _FUNCTIONS), gradient
