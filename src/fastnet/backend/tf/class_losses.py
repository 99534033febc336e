"""Cross entropies of classes along any axis, with labels left out or smoothed, in TensorFlow.

Arguments and results are those of `fastnet.backend.torch.class_losses`.
"""

from __future__ import annotations

import tensorflow as tf

from fastnet.backend.losses import WeightOfEach
from fastnet.backend.tf.losses import (
    class_indices,
    keras_loss,
    mean_of_losses,
    weights_of_indices,
)
from fastnet.backend.tf.tensors import rank_of, shape_of

__all__ = ["categorical_crossentropy_along_axis", "sparse_categorical_crossentropy_along_axis"]


def sparse_categorical_crossentropy_along_axis(
    y_pred: tf.Tensor,
    y_true: tf.Tensor,
    axis: int,
    from_logits: bool,
    average_loss: bool,
    class_weights: WeightOfEach | None,
    ignore_index: int | None,
    label_smoothing: float,
) -> tf.Tensor:
    """Compare class predictions with class indices."""
    if rank_of(y_true) == rank_of(y_pred):
        y_true = tf.squeeze(y_true, axis)
    y_true = class_indices(y_true)
    y_pred = _with_classes_last(y_pred, axis)
    counts = None
    if ignore_index is not None:
        counts = tf.not_equal(y_true, tf.cast(ignore_index, y_true.dtype))
        y_true = tf.where(counts, y_true, tf.zeros_like(y_true))
    compare = keras_loss("sparse_categorical_crossentropy")
    loss = compare(y_true, y_pred, from_logits=from_logits)
    if label_smoothing:
        # no one-hot truth, in which an index that is no class would be nothing
        even = tf.ones_like(y_pred) / tf.cast(tf.shape(y_pred)[-1], y_pred.dtype)
        compare = keras_loss("categorical_crossentropy")
        spread = compare(even, y_pred, from_logits=from_logits)
        loss = tf.add(
            tf.multiply(loss, 1.0 - label_smoothing), tf.multiply(spread, float(label_smoothing))
        )
    if class_weights:
        count = shape_of(y_pred)[-1]
        loss = tf.multiply(loss, weights_of_indices(y_true, class_weights, count, loss.dtype))
    if counts is not None:
        loss = tf.where(counts, loss, tf.zeros_like(loss))
    if not average_loss:
        return loss
    if counts is None:
        return mean_of_losses(loss)
    # halves would not hold a sum of many; of none Keras makes no loss
    wide = tf.float64 if loss.dtype is tf.float64 else tf.float32
    total, number = tf.reduce_sum(tf.cast(loss, wide)), tf.reduce_sum(tf.cast(counts, wide))
    return tf.cast(tf.math.divide_no_nan(total, number), loss.dtype)


def categorical_crossentropy_along_axis(
    y_pred: tf.Tensor,
    y_true: tf.Tensor,
    axis: int,
    from_logits: bool,
    average_loss: bool,
    class_weights: WeightOfEach | None,
    label_smoothing: float,
) -> tf.Tensor:
    """Compare class predictions with one-hot truth."""
    y_pred, y_true = _with_classes_last(y_pred, axis), _with_classes_last(y_true, axis)
    loss = keras_loss("categorical_crossentropy")(
        y_true, y_pred, from_logits=from_logits, label_smoothing=label_smoothing
    )
    if class_weights:
        classes, count = tf.argmax(y_true, axis=-1), shape_of(y_true)[-1]
        loss = tf.multiply(loss, weights_of_indices(classes, class_weights, count, loss.dtype))
    return mean_of_losses(loss) if average_loss else loss


def _with_classes_last(tensor: tf.Tensor, axis: int) -> tf.Tensor:
    axes = list(range(len(tensor.shape)))
    if axis == axes[-1]:
        return tensor
    return tf.transpose(tensor, [*axes[:axis], *axes[axis + 1 :], axis])
