"""Losses on TensorFlow tensors."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

__all__ = [
    "binary_crossentropy",
    "categorical_crossentropy",
    "focal",
    "hinge",
    "huber",
    "l1_loss",
    "mean_squared_error",
    "smooth_l1_loss",
    "sparse_categorical_crossentropy",
]


def binary_crossentropy(
    y_pred: tf.Tensor,
    y_true: tf.Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: Mapping[int, float] | None = None,
) -> tf.Tensor:
    """Compare yes-or-no predictions with the truth.

    Args:
        y_pred: Predictions, shape (batch, ...), floating point.
        y_true: Truth, of as many elements, 0 or 1 (or between).
        from_logits: Whether `y_pred` are logits rather than probabilities.
        average_loss: Whether to return the mean over the batch.
        class_weights: Weights of the classes 0 and 1; a class without one weighs 1.

    Returns:
        A scalar, or a loss for each sample, shape (batch,).
    """
    y_true = tf.reshape(y_true, tf.shape(y_pred))
    loss = _compare_elements(tf.cast(y_true, y_pred.dtype), y_pred, from_logits)
    if class_weights:
        loss = loss * _weights_of(y_true, class_weights, loss.dtype)
    if loss.shape.rank != 1:
        # the last axis by itself, as Keras does it, so that sums round as Keras's do
        loss = tf.reduce_mean(loss, axis=-1)
    if loss.shape.rank != 1:
        loss = tf.reduce_mean(tf.reshape(loss, [tf.shape(loss)[0], -1]), axis=1)
    return tf.reduce_mean(loss) if average_loss else loss


def categorical_crossentropy(
    y_pred: tf.Tensor,
    y_true: tf.Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: Mapping[int, float] | None = None,
) -> tf.Tensor:
    """Compare class predictions with one-hot truth.

    Args:
        y_pred: Predictions, shape (batch, ..., classes), floating point.
        y_true: Truth, of the same shape, a probability for each class.
        from_logits: Whether `y_pred` are logits rather than probabilities.
        average_loss: Whether to return the mean over all elements.
        class_weights: Weights of classes by index; a class without one weighs 1.

    Returns:
        A scalar, or a loss for each sample, shape (batch, ...).
    """
    loss = tf.keras.losses.categorical_crossentropy(y_true, y_pred, from_logits=from_logits)
    if class_weights:
        loss = loss * _weights_of(tf.argmax(y_true, axis=-1), class_weights, loss.dtype)
    return tf.reduce_mean(loss) if average_loss else loss


def sparse_categorical_crossentropy(
    y_pred: tf.Tensor,
    y_true: tf.Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: Mapping[int, float] | None = None,
) -> tf.Tensor:
    """Compare class predictions with class indices.

    Args:
        y_pred: Predictions, shape (batch, ..., classes), floating point.
        y_true: Class indices, shape (batch, ...) or (batch, ..., 1), any integer type.
        from_logits: Whether `y_pred` are logits rather than probabilities.
        average_loss: Whether to return the mean over all elements.
        class_weights: Weights of classes by index; a class without one weighs 1.

    Returns:
        A scalar, or a loss for each sample, shape (batch, ...).
    """
    loss = tf.keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=from_logits)
    if class_weights:
        loss = loss * _weights_of(tf.reshape(y_true, tf.shape(loss)), class_weights, loss.dtype)
    return tf.reduce_mean(loss) if average_loss else loss


def mean_squared_error(
    y_true: tf.Tensor, y_pred: tf.Tensor, average_loss: bool = False
) -> tf.Tensor:
    """Average squared differences over the last axis.

    Args:
        y_true: Truth, shape (batch, ...).
        y_pred: Predictions, of the same shape.
        average_loss: Whether to average over all axes.

    Returns:
        Means, of the shape without its last axis, or a scalar.
    """
    loss = tf.keras.losses.MSE(y_true, y_pred)
    return tf.reduce_mean(loss) if average_loss else loss


def _compare_elements(y_true: tf.Tensor, y_pred: tf.Tensor, from_logits: bool) -> tf.Tensor:
    keras = tf.keras
    if not hasattr(keras, "ops"):
        return keras.backend.binary_crossentropy(y_true, y_pred, from_logits=from_logits)
    half = y_pred.dtype in (tf.float16, tf.bfloat16)
    if half and not from_logits and tf.executing_eagerly():
        # Keras 3 keeps away from 1 by less than half precision can tell. In a graph it sees the
        # logits that probabilities are made of.
        wide = keras.ops.binary_crossentropy(tf.cast(y_true, "float32"), tf.cast(y_pred, "float32"))
        return tf.cast(wide, y_pred.dtype)
    return keras.ops.binary_crossentropy(y_true, y_pred, from_logits=from_logits)


def _weights_of(
    classes: tf.Tensor, class_weights: Mapping[int, float], dtype: tf.DType
) -> tf.Tensor:
    classes = tf.cast(classes, tf.int64)
    weights = tf.ones_like(classes, dtype=dtype)
    for index, weight in class_weights.items():
        weights = tf.where(tf.equal(classes, index), tf.cast(weight, dtype), weights)
    return weights


def hinge(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Average over the last axis how far predictions are from the right side of the margin.

    Args:
        y_true: Truth, -1 or 1.
        y_pred: Predictions, of the same shape.

    Returns:
        Means, of the shape without its last axis.
    """
    missing = tf.maximum(1.0 - tf.cast(y_true, y_pred.dtype) * y_pred, 0)
    return tf.reduce_mean(missing, axis=-1)


def l1_loss(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Average absolute differences over the last axis.

    Args:
        y_true: Truth, shape (batch, ...).
        y_pred: Predictions, of the same shape.

    Returns:
        Means, of the shape without its last axis; of one axis the differences themselves.
    """
    return _mean_of_samples(tf.abs(y_pred - tf.cast(y_true, y_pred.dtype)))


def smooth_l1_loss(y_true: tf.Tensor, y_pred: tf.Tensor, beta: float = 1.0) -> tf.Tensor:
    """Average differences over the last axis, small ones squared and divided by `beta`.

    Args:
        y_true: Truth, shape (batch, ...).
        y_pred: Predictions, of the same shape.
        beta: Up to where differences are small.

    Returns:
        Means, of the shape without its last axis.
    """
    gap = tf.abs(y_pred - tf.cast(y_true, y_pred.dtype))
    return tf.reduce_mean(
        tf.where(gap < beta, 0.5 * tf.square(gap) / beta, gap - 0.5 * beta), axis=-1
    )


def huber(y_true: tf.Tensor, y_pred: tf.Tensor, beta: float = 1.0) -> tf.Tensor:
    """Average differences over the last axis, small ones squared, large ones times `beta`.

    Args:
        y_true: Truth, shape (batch, ...).
        y_pred: Predictions, of the same shape.
        beta: Up to where differences are small.

    Returns:
        Means, of the shape without its last axis; of one axis what would be averaged.
    """
    gap = tf.abs(y_pred - tf.cast(y_true, y_pred.dtype))
    return _mean_of_samples(
        tf.where(gap <= beta, 0.5 * tf.square(gap), beta * gap - 0.5 * beta * beta)
    )


def focal(
    y_true: tf.Tensor, y_pred: tf.Tensor, gamma: float, alpha: float, from_logits: bool
) -> tf.Tensor:
    """Compare yes-or-no predictions with the truth, those that are nearly right counting less.

    Args:
        y_true: Truth, 0 or 1 (or between), of the predictions' type.
        y_pred: Predictions, of the same shape.
        gamma: How much less.
        alpha: What a truth of 1 weighs, out of 1.
        from_logits: Whether `y_pred` are logits rather than probabilities.

    Returns:
        A loss for each element.
    """
    entropy = _compare_elements(y_true, y_pred, from_logits)
    probability = tf.sigmoid(y_pred) if from_logits else y_pred
    right = y_true * probability + (1 - y_true) * (1 - probability)
    weight = y_true * alpha + (1 - y_true) * (1 - alpha)
    return weight * (tf.pow(1.0 - right, gamma) * entropy)


def _mean_of_samples(losses: tf.Tensor) -> tf.Tensor:
    return losses if losses.shape.rank == 1 else tf.reduce_mean(losses, axis=-1)
