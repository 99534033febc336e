"""Samples mixed with each other, in TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fastnet.backend.tf.tensors import cast_like

__all__ = ["cut_mix", "draw_beta", "mix_up", "paste_box"]


def mix_up(
    samples: tf.Tensor, labels: tf.Tensor, alpha: float, shared: bool, beta: Any = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Blend each sample of a batch with the one before it, and their labels too.

    Args:
        samples: Samples, shape (batch, ...).
        labels: Labels, shape (batch, ...).
        alpha: Both parameters of the beta distribution.
        shared: Whether to draw one share for the whole batch.
        beta: What to draw from instead: its `sample()` gives one share, and with a `sample_shape`
            as many.

    Returns:
        The blended samples and the blended labels.
    """
    share = label_share = _draw(alpha, samples, beta, each=not shared)
    if not shared:
        share = tf.reshape(share, [-1] + [1] * (len(samples.shape) - 1))
        label_share = tf.reshape(label_share, [-1] + [1] * (len(labels.shape) - 1))
    share = tf.maximum(share, 1.0 - share)
    return _blend(samples, share), _blend(labels, label_share)


def cut_mix(
    images: tf.Tensor, labels: tf.Tensor, alpha: float, beta: Any = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Paste a box of each image into the next one of a batch, and mix their labels alike.

    Args:
        images: Images, shape (batch, height, width, channels).
        labels: Labels, shape (batch, ...).
        alpha: Both parameters of the beta distribution.
        beta: What to draw from instead, by its `sample()`.

    Returns:
        The mixed images and the mixed labels.
    """
    share = _draw(alpha, images, beta, each=False)
    share = tf.maximum(share, 1.0 - share)
    x, y = tf.random.uniform(()), tf.random.uniform(())
    mixed, kept = paste_box(images, tf.roll(images, 1, 0), x, y, share)
    return mixed, _blend(labels, kept)


def _blend(values: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    """Add to a share of each value the rest of the one before it; whole numbers become floats."""
    if not values.dtype.is_floating:
        values = tf.cast(values, share.dtype)
    share = cast_like(share, values)
    return tf.add(tf.multiply(values, share), tf.multiply(tf.roll(values, 1, 0), 1.0 - share))


def _draw(alpha: float, batch: tf.Tensor, beta: Any, each: bool) -> tf.Tensor:
    if beta is None:
        return draw_beta(alpha, batch, each)
    drawn = beta.sample(sample_shape=(tf.shape(batch)[0],)) if each else beta.sample()
    return tf.cast(drawn, tf.float32)


def draw_beta(alpha: float, batch: tf.Tensor, each: bool) -> tf.Tensor:
    """Draw from a symmetric beta distribution.

    Args:
        alpha: Both of its parameters.
        batch: The batch that it is for.
        each: Whether to draw a number for each of its samples, rather than one for all.

    Returns:
        Numbers from 0 to 1, shape (batch,) or ().
    """
    shape = tf.shape(batch)[:1] if each else []
    one = tf.random.gamma(shape, alpha)
    two = tf.random.gamma(shape, alpha)
    # both vanish together only where alpha is tiny: then it is one of them as well
    total = tf.add(one, two)
    return tf.where(total > 0, tf.realdiv(one, total), tf.round(tf.random.uniform(tf.shape(one))))


def paste_box(
    images: tf.Tensor, others: tf.Tensor, x: tf.Tensor, y: tf.Tensor, kept: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Replace a box of images by that of others.

    Args:
        images: Images, shape (batch, height, width, channels).
        others: As many images of the same shape.
        x: Where the middle of the box is, from 0 (left) to 1 (right), a scalar.
        y: Where the middle of the box is, from 0 (top) to 1 (bottom), a scalar.
        kept: How much of the area is outside of the box, before that is cut off at the edges.

    Returns:
        New images, and how much of their area is as it was, a scalar.
    """
    shape = tf.shape(images)
    height, width = shape[1], shape[2]
    left, right = _span(width, x, kept)
    top, bottom = _span(height, y, kept)
    rows, columns = tf.range(height), tf.range(width)
    in_rows = tf.logical_and(rows >= top, rows < bottom)
    in_columns = tf.logical_and(columns >= left, columns < right)
    in_box = tf.logical_and(in_rows[:, None], in_columns[None, :])[None, :, :, None]
    area = tf.cast((right - left) * (bottom - top), tf.float32)
    boxed = tf.realdiv(area, tf.cast(height * width, tf.float32))
    return tf.where(in_box, others, images), 1.0 - boxed


def _span(length: tf.Tensor, middle: tf.Tensor, kept: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    size = tf.cast(length, tf.float32)
    half = tf.realdiv(tf.multiply(size, tf.sqrt(1.0 - kept)), 2)
    middle = tf.multiply(size, middle)
    first = tf.round(tf.maximum(tf.subtract(middle, half), 0.0))
    last = tf.round(tf.minimum(tf.add(middle, half), size))
    return tf.cast(first, tf.int32), tf.cast(last, tf.int32)
