"""Losses on TensorFlow tensors."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

__all__ = [
    "binary_crossentropy",
    "categorical_crossentropy",
    "mean_squared_error",
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
    loss = tf.keras.losses.binary_crossentropy(y_true, y_pred, from_logits=from_logits)
    if class_weights:
        loss = loss * _weights_of(tf.reshape(y_true, tf.shape(loss)), class_weights, loss.dtype)
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


def _weights_of(
    classes: tf.Tensor, class_weights: Mapping[int, float], dtype: tf.DType
) -> tf.Tensor:
    weights = tf.ones_like(classes, dtype=dtype)
    for index, weight in class_weights.items():
        of_class = tf.equal(classes, tf.cast(index, classes.dtype))
        weights = tf.where(of_class, tf.cast(weight, dtype), weights)
    return weights
