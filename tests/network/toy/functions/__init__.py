"""The tensor functions, in the toy framework: those that its programs use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.network.toy import Tensor, as_tensor

CHANNEL_AXIS = -1


def convert(value: Any) -> Any:
    if value is None or isinstance(value, (str, Tensor)):
        return value
    return as_tensor(value)


def get_shape(tensor: Tensor) -> tuple[int, ...]:
    return tensor.shape


def reduce_mean(tensor: Tensor, axis: Sequence[int] | None, keepdims: bool) -> Tensor:
    if axis is None and not keepdims:
        return tensor.mean()
    return Tensor(tensor.value.mean(axis=axis and tuple(axis), keepdims=keepdims))


def reshape(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    return Tensor(tensor.value.reshape(shape))


def settled_shape(shape: Sequence[int]) -> Sequence[int]:
    return shape


def slices_along(tensor: Tensor, axis: int) -> list[Tensor]:
    return [Tensor(one) for one in np.moveaxis(tensor.value, axis, 0)]


def stack(tensors: Sequence[Tensor], axis: int) -> Tensor:
    return Tensor(np.stack([one.value for one in tensors], axis))
