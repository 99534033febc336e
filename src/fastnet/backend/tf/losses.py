"""Losses on TensorFlow tensors.

Arguments and results are those of the functions of the same names in `fastnet.backend`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import tensorflow as tf

from fastnet.backend.losses import WeightOfEach
from fastnet.backend.tf.tensors import rank_of, shape_of

__all__ = [
    "ClassWeights",
    "binary_crossentropy",
    "categorical_crossentropy",
    "class_indices",
    "focal",
    "hinge",
    "huber",
    "keras_loss",
    "l1_loss",
    "mean_of_losses",
    "mean_squared_error",
    "smooth_l1_loss",
    "sparse_categorical_crossentropy",
    "weights_of_indices",
]


def binary_crossentropy(
    y_pred: tf.Tensor,
    y_true: tf.Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: WeightOfEach | None = None,
    label_smoothing: float = 0.0,
) -> tf.Tensor:
    """Compare yes-or-no predictions with the truth."""
    shape = shape_of(y_pred)
    if not (_is_known(shape) and shape_of(y_true) == shape):
        y_true = tf.reshape(y_true, tf.shape(y_pred))
    dtype = y_pred.dtype
    compare = _entropy_of(dtype, from_logits)
    truth = _cast(y_true, dtype)
    if label_smoothing:
        truth = tf.add(tf.multiply(truth, 1.0 - label_smoothing), label_smoothing / 2)
    loss = compare(truth, y_pred, from_logits=from_logits)
    if class_weights:
        loss = tf.multiply(loss, _weights_of(y_true, class_weights, loss.dtype))
    rank = rank_of(loss)
    if rank != 1:
        # the last axis by itself, as Keras does it, so that sums round as Keras's do
        loss = tf.reduce_mean(loss, axis=-1)
        if rank != 2:
            loss = tf.reduce_mean(tf.reshape(loss, [tf.shape(loss)[0], -1]), axis=1)
    return mean_of_losses(loss) if average_loss else loss


def categorical_crossentropy(
    y_pred: tf.Tensor,
    y_true: tf.Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: WeightOfEach | None = None,
) -> tf.Tensor:
    """Compare class predictions with one-hot truth."""
    loss = keras_loss("categorical_crossentropy")(y_true, y_pred, from_logits=from_logits)
    if class_weights:
        classes, count = tf.argmax(y_true, axis=-1), shape_of(y_true)[-1]
        weights = weights_of_indices(classes, class_weights, count, loss.dtype)
        loss = tf.multiply(loss, weights)
    return mean_of_losses(loss) if average_loss else loss


def sparse_categorical_crossentropy(
    y_pred: tf.Tensor,
    y_true: tf.Tensor,
    from_logits: bool = False,
    average_loss: bool = True,
    class_weights: WeightOfEach | None = None,
) -> tf.Tensor:
    """Compare class predictions with class indices."""
    y_true = class_indices(y_true)
    loss = keras_loss("sparse_categorical_crossentropy")(y_true, y_pred, from_logits=from_logits)
    if class_weights:
        classes = y_true
        rank = rank_of(y_true)
        if rank is None or rank != rank_of(loss):
            classes = tf.reshape(y_true, tf.shape(loss))
        weights = weights_of_indices(classes, class_weights, shape_of(y_pred)[-1], loss.dtype)
        loss = tf.multiply(loss, weights)
    return mean_of_losses(loss) if average_loss else loss


def class_indices(labels: tf.Tensor) -> tf.Tensor:
    """Convert floating point labels to int64.

    Raises:
        ValueError: If a label has a fraction and TensorFlow executes eagerly. A graph gets an index
            that no class has, which the loss rejects.
    """
    if not isinstance(labels, tf.Tensor):
        labels = tf.convert_to_tensor(labels)
    dtype = labels.dtype
    if not dtype.is_floating:
        return labels
    indices = tf.cast(labels, tf.int64)
    is_whole = tf.equal(tf.cast(indices, dtype), labels)
    if tf.executing_eagerly() and tf.reduce_any(
        tf.math.is_finite(labels) & tf.not_equal(tf.floor(labels), labels)
    ):
        raise ValueError(
            f"Class labels must be whole numbers, but labels of dtype {dtype.name} have fractions. "
            "Cast them to an integer dtype if they are to be truncated."
        )
    return tf.where(is_whole, indices, tf.int64.min)


def mean_squared_error(
    y_true: tf.Tensor, y_pred: tf.Tensor, average_loss: bool = False
) -> tf.Tensor:
    """Average squared differences over the last axis."""
    loss = keras_loss("MSE")(y_true, y_pred)
    return mean_of_losses(loss) if average_loss else loss


def mean_of_losses(losses: tf.Tensor) -> tf.Tensor:
    """Average losses over all axes."""
    if losses.dtype is not tf.float16:
        return tf.reduce_mean(losses)
    # TensorFlow's mean adds halves up to a half, and counts them by one: neither goes beyond 65504,
    # and the mean is infinite, NaN or 0. Where it is roundings away it is what others compute, to
    # the bit; the gradient is the wide one's.
    wide = tf.cast(tf.reduce_mean(tf.cast(losses, tf.float32)), tf.float16)
    rest = tf.subtract(tf.reduce_mean(losses), wide)
    rest = tf.where(tf.less_equal(tf.abs(rest), tf.abs(wide) * 2.0**-8), rest, tf.zeros_like(rest))
    return tf.add(wide, tf.stop_gradient(rest))


def _entropy_of(dtype: tf.DType, from_logits: bool) -> Callable[..., tf.Tensor]:
    """Find what compares elements of a type."""
    # which is not called from here: TensorFlow notes with each of its ops who has called it, and
    # Keras makes many
    half = dtype is tf.float16 or dtype is tf.bfloat16
    if half and not from_logits and _is_keras3() and tf.executing_eagerly():
        return _wide_entropy
    return _keras_entropy()


@cache
def _is_keras3() -> bool:
    return hasattr(tf.keras, "ops")


@cache
def _keras_entropy() -> Callable[..., tf.Tensor]:
    # TensorFlow looks for its Keras each time that somebody asks for it
    keras = tf.keras
    functions = keras.ops if _is_keras3() else keras.backend
    entropy: Callable[..., tf.Tensor] = functions.binary_crossentropy
    return entropy


@cache
def keras_loss(name: str) -> Callable[..., tf.Tensor]:
    """Find a function of `keras.losses` by its name."""
    loss: Callable[..., tf.Tensor] = getattr(tf.keras.losses, name)
    return loss


def _wide_entropy(y_true: tf.Tensor, y_pred: tf.Tensor, from_logits: bool) -> tf.Tensor:
    """Compare probabilities of half precision."""
    # Keras 3 keeps away from 1 by less than half precision can tell. In a graph it sees the logits
    # that probabilities are made of.
    wide = tf.keras.ops.binary_crossentropy(
        tf.cast(y_true, "float32"), tf.cast(y_pred, "float32"), from_logits=from_logits
    )
    return tf.cast(wide, y_pred.dtype)


def _weights_of(classes: tf.Tensor, class_weights: WeightOfEach, dtype: tf.DType) -> tf.Tensor:
    if not isinstance(class_weights, Mapping):  # a table has a weight for what it lacks, too
        weights = class_weights.lookup(tf.cast(classes, class_weights.key_dtype))
        return _cast(weights, dtype)
    classes = _cast(classes, tf.int64)
    weights, pairs = _constants_of(class_weights, dtype)
    for index, weight in pairs:
        weights = tf.where(tf.equal(classes, index), weight, weights)
    return weights


def _constants_of(
    class_weights: Mapping[int, float], dtype: tf.DType
) -> tuple[tf.Tensor, list[tuple[tf.Tensor, tf.Tensor]]]:
    """Make tensors of the weight that most classes have, and of each class and its weight."""
    rows: dict[Any, Any] | None = getattr(class_weights, "rows", None)
    found = None if rows is None else rows.get(dtype)
    if found is None:
        with tf.init_scope():  # what is made here outlives a graph
            pairs = [
                (tf.constant(index, tf.int64), tf.constant(weight, dtype))
                for index, weight in class_weights.items()
            ]
            found = tf.constant(1.0, dtype), pairs
        if rows is not None:
            rows[dtype] = found
    return found


def weights_of_indices(
    classes: tf.Tensor, class_weights: WeightOfEach, count: int | None, dtype: tf.DType
) -> tf.Tensor:
    """Look weights up by indices that a loss has been computed with, of `count` classes."""
    rows: dict[Any, tf.Tensor] | None = getattr(class_weights, "rows", None)
    if rows is None or count is None:
        return _weights_of(classes, class_weights, dtype)
    row = rows.get((count, dtype))
    if row is None:
        with tf.init_scope():  # what is made here outlives a graph
            weights = [class_weights.get(index, 1.0) for index in range(count)]
            row = rows[count, dtype] = tf.constant(weights, dtype)
    dtype = classes.dtype
    if dtype is not tf.int64 and dtype is not tf.int32:  # what TensorFlow looks things up by
        classes = tf.cast(classes, tf.int64)
    return tf.gather(row, classes)


class ClassWeights(dict[int, float]):
    """Weights of classes by index, which are the same in every step.

    Attributes:
        rows: A tensor of them for each number of classes, and each type, that has been met; and
            for each type by itself, one for each class.
    """

    def __init__(self, weights: Mapping[int, float]) -> None:
        super().__init__(weights)
        self.rows: dict[Any, Any] = {}


def hinge(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Average over the last axis how far predictions are from the right side of the margin."""
    right = tf.multiply(_cast(y_true, y_pred.dtype), y_pred)
    return tf.reduce_mean(tf.maximum(1.0 - right, 0), axis=-1)


def l1_loss(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Average absolute differences over the last axis."""
    return _mean_of_samples(_gap(y_true, y_pred))


def smooth_l1_loss(y_true: tf.Tensor, y_pred: tf.Tensor, beta: float = 1.0) -> tf.Tensor:
    """Average differences over the last axis, small ones squared and divided by `beta`."""
    gap = _gap(y_true, y_pred)
    small = tf.realdiv(tf.multiply(tf.square(gap), 0.5), beta)
    large = tf.subtract(gap, 0.5 * beta)
    return tf.reduce_mean(tf.where(tf.less(gap, beta), small, large), axis=-1)


def huber(y_true: tf.Tensor, y_pred: tf.Tensor, beta: float = 1.0) -> tf.Tensor:
    """Average differences over the last axis, small ones squared, large ones times `beta`."""
    gap = _gap(y_true, y_pred)
    small = tf.multiply(tf.square(gap), 0.5)
    large = tf.subtract(tf.multiply(gap, beta), 0.5 * beta * beta)
    return _mean_of_samples(tf.where(tf.less_equal(gap, beta), small, large))


def focal(
    y_true: tf.Tensor, y_pred: tf.Tensor, gamma: float, alpha: float, from_logits: bool
) -> tf.Tensor:
    """Compare each yes-or-no prediction with the truth, those nearly right counting less."""
    compare = _entropy_of(y_pred.dtype, from_logits)
    entropy = compare(y_true, y_pred, from_logits=from_logits)
    probability = tf.sigmoid(y_pred) if from_logits else y_pred
    untrue = 1.0 - y_true
    right = tf.add(tf.multiply(y_true, probability), tf.multiply(untrue, 1.0 - probability))
    weight = tf.add(tf.multiply(y_true, alpha), tf.multiply(untrue, 1 - alpha))
    return tf.multiply(weight, tf.multiply(tf.pow(1.0 - right, gamma), entropy))


def _mean_of_samples(losses: tf.Tensor) -> tf.Tensor:
    return losses if rank_of(losses) == 1 else tf.reduce_mean(losses, axis=-1)


def _gap(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    # `-` takes longer to come to this
    return tf.abs(tf.subtract(y_pred, _cast(y_true, y_pred.dtype)))


def _cast(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tensor if tensor.dtype is dtype else tf.cast(tensor, dtype)


def _is_known(shape: tuple[int, ...] | tf.TensorShape) -> bool:
    return isinstance(shape, tuple) or shape.is_fully_defined()
