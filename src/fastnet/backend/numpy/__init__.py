"""The tensor functions on numpy arrays, with classes and channels last.

`fastnet.backend` documents the functions that are public; the others are for slicers, and for ops
that are called outside of a network.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import add, attrgetter, mul, truediv
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastnet.backend.lambert import Functions, solve
from fastnet.backend.losses import fractional_label
from fastnet.backend.precision import compute_precision
from fastnet.errors import shorten
from fastnet.util.tensors import to_number

Array: TypeAlias = NDArray[Any]
Axes: TypeAlias = tuple[int, ...] | None

CHANNEL_AXIS = -1

add, multiply, divide = add, mul, truediv
reciprocal: Any = partial(truediv, 1.0)
shape_of = get_shape = attrgetter("shape")
mean_of = mean_of_losses = np.mean
sum_of = np.sum
prepare_axes: Any = tuple

abs, exp, sign, tensor_round, tensor_sqrt = np.abs, np.exp, np.sign, np.round, np.sqrt
argmax, clip_by_value = np.argmax, np.clip
matmul, maximum, pow = np.matmul, np.maximum, np.power
concat, stack, expand_dims, squeeze = np.concatenate, np.stack, np.expand_dims, np.squeeze
permute = transpose = np.transpose
flip, reshape, roll, where = np.flip, np.reshape, np.roll, np.where
zeros_like, ones_like = np.zeros_like, np.ones_like


# Elementwise functions.


def check_nan(val: Any) -> Any:
    return np.logical_not(np.isfinite(val).all())


def lambertw(tensor: Array) -> Array:
    z = np.asarray(tensor)
    result_dtype = z.dtype if z.dtype.kind == "f" else np.dtype("float64")
    compute_dtype, mantissa_bits = ("float64", 53) if result_dtype == "float64" else ("float32", 24)
    with np.errstate(all="ignore"):
        w = solve(z.astype(compute_dtype), mantissa_bits, _FUNCTIONS)
    return w.astype(result_dtype)


_FUNCTIONS = Functions(np.exp, np.log1p, np.sqrt, np.maximum, np.where)


def zscore(data: Array, epsilon: float) -> Any:
    deviation = np.std(data)
    return (data - np.mean(data)) / (deviation if deviation > epsilon else epsilon)


# Reductions.


def _reduction(reduce: Callable[..., Any]) -> Callable[[Array, Axes, bool], Any]:
    def along_axes(tensor: Array, axis: Axes, keepdims: bool) -> Any:
        return reduce(tensor, axis=axis, keepdims=keepdims)

    return along_axes


reduce_mean, reduce_sum, reduce_std = _reduction(np.mean), _reduction(np.sum), _reduction(np.std)
reduce_max, reduce_min = _reduction(np.max), _reduction(np.min)


def percentile(tensor: Array, percentiles: Sequence[float], axis: Axes, keepdims: bool) -> Any:
    return np.percentile(tensor, list(percentiles), axis=axis, keepdims=keepdims, method="lower")


# Creation and conversion.


def constant(array: Array, like: Array) -> Array:
    return array


def zeros(shape: Sequence[int], like: Array, dtype: str | None) -> Array:
    return np.zeros(tuple(shape), dtype=like.dtype if dtype is None else dtype)


def random_normal_like(tensor: Array, mean: float, std: float, dtype: Any) -> Array:
    drawn = np.asarray(np.random.normal(loc=mean, scale=std, size=tensor.shape))
    return drawn.astype(tensor.dtype if dtype is None else _dtype(dtype))


def random_uniform_like(tensor: Array, minval: float, maxval: float, dtype: Any) -> Array:
    drawn = np.asarray(np.random.uniform(low=minval, high=maxval, size=tensor.shape))
    return drawn.astype(tensor.dtype if dtype is None else _dtype(dtype))


def convert(value: Any) -> Any:
    if value is None or isinstance(value, (str, bytes)):
        return value
    return _array(value)


def cast(tensor: Any, dtype: Any) -> Array:
    return np.array(_array(tensor), dtype=_dtype(dtype))


def cast_like(value: Any, like: Array) -> Array:
    return np.array(_array(value), dtype=like.dtype)


def is_integral(tensor: Array) -> bool:
    return tensor.dtype.kind in "iub"


def _array(value: Any) -> Array:
    return value if isinstance(value, np.ndarray) else to_number(value)


def _dtype(dtype: Any) -> np.dtype[Any]:
    try:
        return np.dtype(dtype)
    except TypeError:
        raise ValueError(
            f"numpy has no dtype named {shorten(dtype)}. Try 'float32' or 'int64'."
        ) from None


# Shapes and indexing.


def gather(tensor: Array, indices: Any) -> Array:
    return np.take(tensor, _indices(indices), axis=0)


def gather_from_batch(tensor: Array, indices: Any) -> Array:
    return tensor[np.arange(tensor.shape[0]), _indices(indices)]


def slices_along(tensor: Array, axis: int) -> list[Array]:
    moved = np.moveaxis(tensor, axis, 0)
    # The ellipsis makes the slices of an array with one axis arrays, too.
    return [moved[index, ...] for index in range(len(moved))]


def pad_ends(tensor: Array, amounts: Sequence[int], mirror: bool, value: float) -> Array:
    if not any(amounts):
        return tensor
    widths = [(0, amount) for amount in amounts]
    if mirror:
        return np.pad(tensor, widths, mode="reflect")
    return np.pad(tensor, widths, mode="constant", constant_values=value)


def _indices(indices: Any) -> Array:
    return np.squeeze(_array(indices)).astype("int64")


# Images and volumes.


class Normalizer:
    """Normalizes images per channel, in float32, or float16 under that Keras precision policy."""

    def __init__(self, mean: Any, std: Any, max_pixel_value: float, epsilon: float = 1e-7) -> None:
        self._dtype = compute_precision()
        self._shift = (np.array(mean) * max_pixel_value).astype(self._dtype)
        scale = (np.array(std) * max_pixel_value).astype(self._dtype)
        self._scale = scale + np.array(epsilon, self._dtype)

    def __call__(self, tensor: Array) -> Array:
        """Normalize images."""
        return (tensor.astype(self._dtype) - self._shift) / self._scale


def resize_3d(tensor: Array, output_shape: Sequence[int], resize_mode: str) -> Array:
    if resize_mode != "nearest":
        raise ValueError(
            f"resize_3d supports numpy arrays only with resize_mode='nearest', but got "
            f"{resize_mode!r}. Convert the array with to_tensor."
        )
    for axis, new_size in enumerate(output_shape, start=1):
        size = tensor.shape[axis]
        # TensorFlow computes the centers in single precision, too.
        centers = np.arange(new_size, dtype="float32") + np.float32(0.5)
        nearest = np.floor(centers * (np.float32(size) / np.float32(new_size))).astype("int64")
        tensor = np.take(tensor, np.minimum(nearest, size - 1), axis=axis)
    return tensor


# Losses.


def binary_crossentropy(
    y_pred: Array,
    y_true: Array,
    from_logits: bool,
    average_loss: bool,
    class_weights: Mapping[int, float] | None,
) -> Any:
    y_true = y_true.astype(y_pred.dtype).reshape(y_pred.shape)
    loss = _binary_entropy(y_true, y_pred, from_logits)
    if class_weights:
        loss = loss * _weights_of(y_true, class_weights, loss.dtype)
    loss = loss.reshape(len(loss), -1).mean(axis=1)
    return loss.mean() if average_loss else loss


def categorical_crossentropy(
    y_pred: Array,
    y_true: Array,
    from_logits: bool,
    average_loss: bool,
    class_weights: Mapping[int, float] | None,
) -> Any:
    loss = -(y_true * _log_probabilities(y_pred, from_logits)).sum(axis=-1)
    if class_weights:
        loss = loss * _weights_of(y_true.argmax(axis=-1), class_weights, loss.dtype)
    return loss.mean() if average_loss else loss


def sparse_categorical_crossentropy(
    y_pred: Array,
    y_true: Array,
    from_logits: bool,
    average_loss: bool,
    class_weights: Mapping[int, float] | None,
) -> Any:
    labels = y_true.reshape(y_pred.shape[:-1])
    classes = labels.astype("int64")
    if labels.dtype.kind == "f" and (classes != labels).any():
        raise fractional_label(labels.dtype, labels[classes != labels][0])
    if (classes < 0).any():
        raise IndexError(f"Class labels must be at least 0, but one is {classes.min()}.")
    chosen = np.take_along_axis(_log_probabilities(y_pred, from_logits), classes[..., None], -1)
    loss = -chosen[..., 0]
    if class_weights:
        loss = loss * _weights_of(classes, class_weights, loss.dtype)
    return loss.mean() if average_loss else loss


def mean_squared_error(y_true: Array, y_pred: Array, average_loss: bool = False) -> Any:
    squares = _difference(y_pred, y_true) ** 2
    return squares.mean() if average_loss else squares.mean(axis=-1)


def hinge(y_true: Array, y_pred: Array) -> Any:
    return np.maximum(1.0 - y_true.astype(y_pred.dtype) * y_pred, 0).mean(axis=-1)


def l1_loss(y_true: Array, y_pred: Array) -> Any:
    return np.abs(_difference(y_pred, y_true)).mean(axis=-1)


def smooth_l1_loss(y_true: Array, y_pred: Array, beta: float) -> Any:
    gap = np.abs(_difference(y_pred, y_true))
    return np.where(gap < beta, 0.5 * gap**2 / beta, gap - 0.5 * beta).mean(axis=-1)


def huber(y_true: Array, y_pred: Array, beta: float) -> Any:
    gap = np.abs(_difference(y_pred, y_true))
    return np.where(gap <= beta, 0.5 * gap**2, beta * (gap - 0.5 * beta)).mean(axis=-1)


def _difference(y_pred: Array, y_true: Array) -> Array:
    """Subtract as floats, since unsigned integers have no negative differences."""
    return (y_pred if y_pred.dtype.kind in "fc" else y_pred.astype("float64")) - y_true


def focal(y_true: Array, y_pred: Array, gamma: float, alpha: float, from_logits: bool) -> Array:
    entropy = _binary_entropy(y_true, y_pred, from_logits)
    probability = 1 / (1 + np.exp(-y_pred)) if from_logits else y_pred
    right = probability * y_true + (1 - probability) * (1 - y_true)
    weight = alpha * y_true + (1 - alpha) * (1 - y_true)
    return weight * (entropy * (1 - right) ** gamma)


def _binary_entropy(y_true: Array, y_pred: Array, from_logits: bool) -> Array:
    if from_logits:
        entropy = np.logaddexp(0, y_pred) - y_pred * y_true
    else:
        # As in torch, the logarithm of 0 counts as -100.
        with np.errstate(divide="ignore"):
            log_positive = np.maximum(np.log(y_pred), -100)
            log_negative = np.maximum(np.log(1 - y_pred), -100)
        entropy = -(y_true * log_positive + (1 - y_true) * log_negative)
    return entropy.astype(y_pred.dtype)


def _log_probabilities(y_pred: Array, from_logits: bool) -> Array:
    if not from_logits:
        return np.log(y_pred)
    shifted = y_pred - y_pred.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _weights_of(classes: Array, class_weights: Mapping[int, float], dtype: Any) -> Array:
    weights = np.ones(classes.shape, dtype=dtype)
    for index, weight in class_weights.items():
        weights[classes == index] = weight
    return weights


# Gradients.


def get_gradient(target: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise ValueError(
        f"numpy has no gradients, but got {type(target).__name__}. Convert it with to_tensor."
    )


watch = compute_gradients = compute_differentiable = get_gradient
