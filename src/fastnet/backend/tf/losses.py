"""Losses on TensorFlow tensors.

Arguments and results are those of the functions of the same names in `fastnet.backend`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

__all__ = [
    "ClassWeights",
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


# the types that TensorFlow looks things up by
_INDICES = (tf.int32, tf.int64)


def binary_crossentropy(
    y_pred: tf.Tensor,
    y_true: tf.Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: Mapping[int, float] | None = None,
) -> tf.Tensor:
    """Compare yes-or-no predictions with the truth."""
    if not (y_true.shape.is_fully_defined() and y_true.shape == y_pred.shape):
        y_true = tf.reshape(y_true, tf.shape(y_pred))
    loss = _compare_elements(_cast(y_true, y_pred.dtype), y_pred, from_logits)
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
    """Compare class predictions with one-hot truth."""
    loss = _keras_loss("categorical_crossentropy")(y_true, y_pred, from_logits=from_logits)
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
    """Compare class predictions with class indices."""
    compare = _keras_loss("sparse_categorical_crossentropy")
    loss = compare(y_true, y_pred, from_logits=from_logits)
    if class_weights:
        classes = y_true
        if y_true.shape.rank is None or y_true.shape.rank != loss.shape.rank:
            classes = tf.reshape(y_true, tf.shape(loss))
        loss = loss * _weights_of_indices(classes, class_weights, y_pred.shape[-1], loss.dtype)
    return tf.reduce_mean(loss) if average_loss else loss


def mean_squared_error(
    y_true: tf.Tensor, y_pred: tf.Tensor, average_loss: bool = False
) -> tf.Tensor:
    """Average squared differences over the last axis."""
    loss = _keras_loss("MSE")(y_true, y_pred)
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


def _weights_of_indices(
    classes: tf.Tensor, class_weights: Mapping[int, float], count: int | None, dtype: tf.DType
) -> tf.Tensor:
    """Look weights up by indices that a loss has been computed with."""
    rows: dict[Any, tf.Tensor] | None = getattr(class_weights, "rows", None)
    if rows is None or count is None:
        return _weights_of(classes, class_weights, dtype)
    row = rows.get((count, dtype))
    if row is None:
        with tf.init_scope():  # what is made here outlives a graph
            weights = [class_weights.get(index, 1.0) for index in range(count)]
            row = rows[count, dtype] = tf.constant(weights, dtype)
    return tf.gather(row, classes if classes.dtype in _INDICES else tf.cast(classes, tf.int64))


class ClassWeights(dict[int, float]):
    """Weights of classes by index, which are the same in every step.

    Attributes:
        rows: A tensor of them for each number of classes, and each type, that has been met.
    """

    def __init__(self, weights: Mapping[int, float]) -> None:
        super().__init__(weights)
        self.rows: dict[Any, tf.Tensor] = {}


_keras_losses: dict[str, Callable[..., tf.Tensor]] = {}


def _keras_loss(name: str) -> Callable[..., tf.Tensor]:
    # TensorFlow looks for its Keras each time that somebody asks for it
    loss = _keras_losses.get(name)
    if loss is None:
        loss = _keras_losses[name] = getattr(tf.keras.losses, name)
    return loss


def hinge(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Average over the last axis how far predictions are from the right side of the margin."""
    missing = tf.maximum(1.0 - _cast(y_true, y_pred.dtype) * y_pred, 0)
    return tf.reduce_mean(missing, axis=-1)


def l1_loss(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Average absolute differences over the last axis."""
    return _mean_of_samples(tf.abs(y_pred - _cast(y_true, y_pred.dtype)))


def smooth_l1_loss(y_true: tf.Tensor, y_pred: tf.Tensor, beta: float = 1.0) -> tf.Tensor:
    """Average differences over the last axis, small ones squared and divided by `beta`."""
    gap = tf.abs(y_pred - _cast(y_true, y_pred.dtype))
    return tf.reduce_mean(
        tf.where(gap < beta, 0.5 * tf.square(gap) / beta, gap - 0.5 * beta), axis=-1
    )


def huber(y_true: tf.Tensor, y_pred: tf.Tensor, beta: float = 1.0) -> tf.Tensor:
    """Average differences over the last axis, small ones squared, large ones times `beta`."""
    gap = tf.abs(y_pred - _cast(y_true, y_pred.dtype))
    return _mean_of_samples(
        tf.where(gap <= beta, 0.5 * tf.square(gap), beta * gap - 0.5 * beta * beta)
    )


def focal(
    y_true: tf.Tensor, y_pred: tf.Tensor, gamma: float, alpha: float, from_logits: bool
) -> tf.Tensor:
    """Compare each yes-or-no prediction with the truth, those nearly right counting less."""
    entropy = _compare_elements(y_true, y_pred, from_logits)
    probability = tf.sigmoid(y_pred) if from_logits else y_pred
    right = y_true * probability + (1 - y_true) * (1 - probability)
    weight = y_true * alpha + (1 - y_true) * (1 - alpha)
    return weight * (tf.pow(1.0 - right, gamma) * entropy)


def _mean_of_samples(losses: tf.Tensor) -> tf.Tensor:
    return losses if losses.shape.rank == 1 else tf.reduce_mean(losses, axis=-1)


def _cast(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tensor if tensor.dtype == dtype else tf.cast(tensor, dtype)
