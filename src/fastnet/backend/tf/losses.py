"""Losses on TensorFlow tensors; `fastnet.backend` documents the functions of the same names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import tensorflow as tf

from fastnet.backend.losses import ClassWeightTable, check_class_weights, fractional_label
from fastnet.types import Model


def binary_crossentropy(
    y_pred: tf.Tensor,
    y_true: tf.Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: ClassWeightTable | None = None,
    label_smoothing: float = 0.0,
) -> tf.Tensor:
    if not (y_pred.shape.is_fully_defined() and y_true.shape == y_pred.shape):
        y_true = tf.reshape(y_true, tf.shape(y_pred))
    labels = _cast(y_true, y_pred.dtype)
    if label_smoothing:
        labels = tf.add(tf.multiply(labels, 1.0 - label_smoothing), label_smoothing / 2)
    loss = _binary_entropy(labels, y_pred, from_logits)
    if class_weights:
        if isinstance(class_weights, Mapping):
            check_class_weights(class_weights, 2)
        loss = tf.multiply(loss, _weights_of(y_true, class_weights, loss.dtype))
    rank = loss.shape.rank
    if rank != 1:
        # The last axis is reduced separately, so that sums are rounded as in Keras.
        loss = tf.reduce_mean(loss, axis=-1)
        if rank != 2:
            loss = tf.reduce_mean(tf.reshape(loss, [tf.shape(loss)[0], -1]), axis=1)
    return mean_of_losses(loss) if average_loss else loss


def categorical_crossentropy(
    y_pred: tf.Tensor,
    y_true: tf.Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: ClassWeightTable | None = None,
    axis: int | None = None,
    label_smoothing: float = 0.0,
) -> tf.Tensor:
    if axis is not None:
        y_pred, y_true = _with_classes_last(y_pred, axis), _with_classes_last(y_true, axis)
    loss = _keras_loss("categorical_crossentropy")(
        y_true, y_pred, from_logits=from_logits, label_smoothing=label_smoothing
    )
    if class_weights:
        classes, count = tf.argmax(y_true, axis=-1), y_true.shape[-1]
        loss = tf.multiply(loss, _weights_of_indices(classes, class_weights, count, loss.dtype))
    return mean_of_losses(loss) if average_loss else loss


def sparse_categorical_crossentropy(
    y_pred: tf.Tensor,
    y_true: tf.Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: ClassWeightTable | None = None,
    axis: int | None = None,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
) -> tf.Tensor:
    if axis is not None:
        if y_true.shape.rank == y_pred.shape.rank:
            y_true = tf.squeeze(y_true, axis)
        y_pred = _with_classes_last(y_pred, axis)
    y_true = _class_indices(y_true)
    is_counted = None
    if ignore_index is not None:
        is_counted = tf.not_equal(tf.cast(y_true, tf.int64), ignore_index)
        y_true = tf.where(is_counted, y_true, tf.zeros_like(y_true))
    loss = _keras_loss("sparse_categorical_crossentropy")(y_true, y_pred, from_logits=from_logits)
    if label_smoothing:
        # One-hot labels would hide an index that no class has.
        even = tf.ones_like(y_pred) / tf.cast(tf.shape(y_pred)[-1], y_pred.dtype)
        uniform = _keras_loss("categorical_crossentropy")(even, y_pred, from_logits=from_logits)
        loss = tf.add(
            tf.multiply(loss, 1.0 - label_smoothing), tf.multiply(uniform, float(label_smoothing))
        )
    if class_weights:
        classes, count = tf.reshape(y_true, tf.shape(loss)), y_pred.shape[-1]
        loss = tf.multiply(loss, _weights_of_indices(classes, class_weights, count, loss.dtype))
    if is_counted is not None:
        loss = tf.where(is_counted, loss, tf.zeros_like(loss))
    if not average_loss:
        return loss
    if is_counted is None:
        return mean_of_losses(loss)
    # The sum of many elements overflows in half precision.
    wide = tf.float64 if loss.dtype is tf.float64 else tf.float32
    total, count = tf.reduce_sum(tf.cast(loss, wide)), tf.reduce_sum(tf.cast(is_counted, wide))
    # All labels may be ignored.
    return tf.cast(tf.math.divide_no_nan(total, count), loss.dtype)


def _with_classes_last(tensor: tf.Tensor, axis: int) -> tf.Tensor:
    axes = list(range(len(tensor.shape)))
    if axis == axes[-1]:
        return tensor
    return tf.transpose(tensor, [*axes[:axis], *axes[axis + 1 :], axis])


def _class_indices(labels: tf.Tensor) -> tf.Tensor:
    """Convert floating point labels to int64.

    A label with a fraction raises an error when TensorFlow executes eagerly. In a graph it becomes
    an index that no class has, which the loss rejects.
    """
    if not isinstance(labels, tf.Tensor):
        labels = tf.convert_to_tensor(labels)
    dtype = labels.dtype
    if not dtype.is_floating:
        return labels
    indices = tf.cast(labels, tf.int64)
    is_whole = tf.equal(tf.cast(indices, dtype), labels)
    if tf.executing_eagerly():
        is_fraction = tf.math.is_finite(labels) & tf.not_equal(tf.floor(labels), labels)
        if tf.reduce_any(is_fraction):
            raise fractional_label(dtype.name, labels[is_fraction][0].numpy())
    return tf.where(is_whole, indices, tf.int64.min)


def mean_squared_error(
    y_true: tf.Tensor, y_pred: tf.Tensor, average_loss: bool = False
) -> tf.Tensor:
    loss = _keras_loss("MSE")(y_true, _floating(y_pred))
    return mean_of_losses(loss) if average_loss else loss


def mean_of_losses(losses: tf.Tensor, axis: int | None = None) -> tf.Tensor:
    if losses.dtype is not tf.float16:
        return tf.reduce_mean(losses, axis)
    # TensorFlow sums float16 in float16, and counts the elements in it, so that the mean of many is
    # infinite, NaN or 0. Where both results agree up to rounding, the narrow one is returned, which
    # equals other programs' bitwise.
    wide = tf.cast(tf.reduce_mean(tf.cast(losses, tf.float32), axis), tf.float16)
    rest = tf.subtract(tf.reduce_mean(losses, axis), wide)
    rest = tf.where(tf.less_equal(tf.abs(rest), tf.abs(wide) * 2.0**-8), rest, tf.zeros_like(rest))
    return tf.add(wide, tf.stop_gradient(rest))


def hinge(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    margin = tf.multiply(_cast(y_true, y_pred.dtype), y_pred)
    return mean_of_losses(tf.maximum(1.0 - margin, 0), -1)


def l1_loss(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    return _mean_of_samples(_distance(y_true, y_pred))


def smooth_l1_loss(y_true: tf.Tensor, y_pred: tf.Tensor, beta: float = 1.0) -> tf.Tensor:
    distance = _distance(y_true, y_pred)
    small = tf.realdiv(tf.multiply(tf.square(distance), 0.5), beta)
    large = tf.subtract(distance, 0.5 * beta)
    return mean_of_losses(tf.where(tf.less(distance, beta), small, large), -1)


def huber(y_true: tf.Tensor, y_pred: tf.Tensor, beta: float = 1.0) -> tf.Tensor:
    distance = _distance(y_true, y_pred)
    small = tf.multiply(tf.square(distance), 0.5)
    large = tf.subtract(tf.multiply(distance, beta), 0.5 * beta * beta)
    return _mean_of_samples(tf.where(tf.less_equal(distance, beta), small, large))


def focal(
    y_true: tf.Tensor, y_pred: tf.Tensor, gamma: float, alpha: float, from_logits: bool
) -> tf.Tensor:
    """Return the focal loss of each element."""
    entropy = _binary_entropy(y_true, y_pred, from_logits)
    probability = tf.sigmoid(y_pred) if from_logits else y_pred
    negative = 1.0 - y_true
    p_true = tf.add(tf.multiply(y_true, probability), tf.multiply(negative, 1.0 - probability))
    weight = tf.add(tf.multiply(y_true, alpha), tf.multiply(negative, 1 - alpha))
    return tf.multiply(weight, tf.multiply(tf.pow(1.0 - p_true, gamma), entropy))


ClassWeights = dict


def l2_regularization(model: Model, beta: float) -> tf.Tensor:
    weights = model.trainable_variables
    squares = [tf.nn.l2_loss(tf.convert_to_tensor(weight)) for weight in weights]
    return tf.multiply(tf.reduce_sum(squares), beta)


def add_l2_regularization(loss: tf.Tensor, model: Model, beta: float) -> tf.Tensor:
    """Return the sum, in the wider dtype of the loss and the weights."""
    squares = l2_regularization(model, beta)
    wide = max(loss.dtype, squares.dtype, key=lambda dtype: dtype.size)
    return tf.add(tf.cast(squares, wide), tf.cast(loss, wide))


# Graphs hold the weights as constants, so nothing caches them, unlike torch's ClassWeights.
def _weights_of(classes: tf.Tensor, class_weights: ClassWeightTable, dtype: tf.DType) -> tf.Tensor:
    if not isinstance(class_weights, Mapping):
        return _cast(class_weights.lookup(tf.cast(classes, class_weights.key_dtype)), dtype)
    weights = tf.constant(1.0, dtype)
    for index, weight in class_weights.items():
        is_class = tf.equal(classes, tf.cast(index, classes.dtype))
        weights = tf.where(is_class, tf.constant(weight, dtype), weights)
    return weights


def _weights_of_indices(
    classes: tf.Tensor, class_weights: ClassWeightTable, count: int | None, dtype: tf.DType
) -> tf.Tensor:
    """Return the weights of the indices of `count` classes, which the loss has validated."""
    if count is None or not isinstance(class_weights, Mapping):
        return _weights_of(tf.cast(classes, tf.int64), class_weights, dtype)
    check_class_weights(class_weights, count)
    row = tf.constant([class_weights.get(index, 1.0) for index in range(count)], dtype)
    return tf.gather(row, classes if classes.dtype is tf.int32 else tf.cast(classes, tf.int64))


@cache
def _keras_loss(name: str) -> Callable[..., tf.Tensor]:
    loss: Callable[..., tf.Tensor] = getattr(tf.keras.losses, name)
    return loss


@cache
def _keras_functions() -> tuple[Any, bool]:
    """Return the module of Keras's tensor functions, and whether it is Keras 3's."""
    is_keras3 = hasattr(tf.keras, "ops")
    return (tf.keras.ops if is_keras3 else tf.keras.backend), is_keras3


def _binary_entropy(y_true: tf.Tensor, y_pred: tf.Tensor, from_logits: bool) -> tf.Tensor:
    keras, is_keras3 = _keras_functions()
    dtype = y_pred.dtype
    is_half = dtype is tf.float16 or dtype is tf.bfloat16
    if is_half and is_keras3 and not from_logits and tf.executing_eagerly():
        # The distance that Keras 3 keeps from 1 is lost in half precision. In a graph it finds the
        # logits behind the probabilities.
        y_true, y_pred = tf.cast(y_true, tf.float32), tf.cast(y_pred, tf.float32)
    return _cast(keras.binary_crossentropy(y_true, y_pred, from_logits=from_logits), dtype)


def _mean_of_samples(losses: tf.Tensor) -> tf.Tensor:
    return losses if losses.shape.rank == 1 else mean_of_losses(losses, -1)


def _distance(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    y_pred = _floating(y_pred)
    return tf.abs(tf.subtract(y_pred, _cast(y_true, y_pred.dtype)))


def _floating(tensor: tf.Tensor) -> tf.Tensor:
    """Cast integers to float32, since unsigned ones have no negative differences."""
    return tf.cast(tensor, tf.float32) if tensor.dtype.is_integer else tensor


def _cast(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tensor if tensor.dtype is dtype else tf.cast(tensor, dtype)
