"""MixUp and CutMix on TensorFlow tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fastnet.backend.tf.tensors import cast_like

__all__ = ["cut_mix", "mix_up"]


def mix_up(
    samples: tf.Tensor, labels: tf.Tensor, alpha: float, shared: bool, beta: Any = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Blend each sample of a batch with the previous one, and their labels alike."""
    share = label_share = _draw(alpha, samples, beta, each=not shared)
    if not shared:
        share = tf.reshape(share, [-1] + [1] * (len(samples.shape) - 1))
        label_share = tf.reshape(label_share, [-1] + [1] * (len(labels.shape) - 1))
    share = tf.maximum(share, 1.0 - share)
    return _blend(samples, share), _blend(labels, label_share)


def cut_mix(
    images: tf.Tensor, labels: tf.Tensor, alpha: float, beta: Any = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Paste a box of each image into the next one, and mix their labels by area."""
    share = _draw(alpha, images, beta, each=False)
    share = tf.maximum(share, 1.0 - share)
    x, y = tf.random.uniform(()), tf.random.uniform(())
    shape = tf.shape(images)
    height, width = shape[1], shape[2]
    left, right = _span(width, x, share)
    top, bottom = _span(height, y, share)
    rows, columns = tf.range(height), tf.range(width)
    in_rows = tf.logical_and(rows >= top, rows < bottom)
    in_columns = tf.logical_and(columns >= left, columns < right)
    in_box = tf.logical_and(in_rows[:, None], in_columns[None, :])[None, :, :, None]
    area = tf.cast((right - left) * (bottom - top), tf.float32)
    kept = 1.0 - tf.realdiv(area, tf.cast(height * width, tf.float32))
    return tf.where(in_box, tf.roll(images, 1, 0), images), _blend(labels, kept)


def _blend(values: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    """Add the rest of the previous value to a share of each; integers become floats."""
    if not values.dtype.is_floating:
        values = tf.cast(values, share.dtype)
    share = cast_like(share, values)
    return tf.add(tf.multiply(values, share), tf.multiply(tf.roll(values, 1, 0), 1.0 - share))


def _draw(alpha: float, batch: tf.Tensor, beta: Any, each: bool) -> tf.Tensor:
    """Draw one share from a symmetric beta distribution, or one for each sample."""
    if beta is not None:
        drawn = beta.sample(sample_shape=(tf.shape(batch)[0],)) if each else beta.sample()
        return tf.cast(drawn, tf.float32)
    shape = tf.shape(batch)[:1] if each else []
    one = tf.random.gamma(shape, alpha)
    two = tf.random.gamma(shape, alpha)
    # Both underflow to 0 only if alpha is tiny, where the share is nearly always 0 or 1.
    total = tf.add(one, two)
    return tf.where(total > 0, tf.realdiv(one, total), tf.round(tf.random.uniform(tf.shape(one))))


def _span(length: tf.Tensor, middle: tf.Tensor, kept: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the start and end of a span, given its relative center and the share outside of it."""
    size = tf.cast(length, tf.float32)
    half = tf.realdiv(tf.multiply(size, tf.sqrt(1.0 - kept)), 2)
    middle = tf.multiply(size, middle)
    first = tf.round(tf.maximum(tf.subtract(middle, half), 0.0))
    last = tf.round(tf.minimum(tf.add(middle, half), size))
    return tf.cast(first, tf.int32), tf.cast(last, tf.int32)
