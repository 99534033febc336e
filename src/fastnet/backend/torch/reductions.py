"""Reductions of torch tensors over axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, nan
from typing import Any, TypeAlias

import torch
from torch import Tensor

Axes: TypeAlias = tuple[int, ...] | None

# torch's own functions, which treat an empty list of axes as all axes.
mean_of = mean_of_losses = torch.mean
sum_of = torch.sum

prepare_axes: Any = tuple
"""Converts axes for `sum_of`."""


def reduce_mean(tensor: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    if axis is None:
        if not keepdims:
            return tensor.mean()
        axis = tuple(range(tensor.dim()))
    elif len(axis) == 1:
        return tensor.mean(axis[0], keepdims)
    # The order of the axes decides the last bit: FastEstimator reduces the last axis first.
    ordered = sorted(axis, reverse=True)
    for index in ordered:
        tensor = tensor.mean(dim=index, keepdim=True)
    return tensor if keepdims or not ordered else tensor.squeeze(tuple(ordered))


def reduce_sum(tensor: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    if axis is None:
        return tensor.sum(dim=list(range(tensor.dim())), keepdim=True) if keepdims else tensor.sum()
    # torch treats an empty list of axes as all axes.
    return tensor.sum(axis, keepdims) if len(axis) else tensor[None].sum(0)


def reduce_std(tensor: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    if axis is None:
        if not keepdims:
            return tensor.std(unbiased=False)
        axis = tuple(range(tensor.dim()))
    if not len(axis):
        return torch.zeros_like(tensor)
    return tensor.std(dim=axis, unbiased=False, keepdim=keepdims)


def value_range(tensor: Any) -> tuple[float, float] | None:
    # Tensors of subclasses may be sharded, or have no values.
    if type(tensor) is not Tensor or not tensor.is_floating_point() or not tensor.numel():
        return None
    minimum, maximum = extremes(tensor)
    return minimum.item(), maximum.item()


def reduce_max(tensor: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    return _extreme("max", tensor, axis, keepdims)


def reduce_min(tensor: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    return _extreme("min", tensor, axis, keepdims)


def extremes(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return the detached minimum and maximum of a tensor."""
    minimum, maximum = tensor.detach().aminmax()
    return minimum, maximum


def percentile(tensor: Tensor, percentiles: Sequence[float], axis: Axes, keepdims: bool) -> Tensor:
    """Return percentiles, rounded down to an element, stacked along a new first axis."""
    count = tensor.dim()
    axes = list(range(count)) if axis is None else [index % count for index in axis]
    other_axes = [index for index in range(count) if index not in axes]
    other_lengths = [tensor.shape[index] for index in other_axes]
    rows = tensor.permute(*other_axes, *axes).reshape([*other_lengths, -1])
    indices = [floor(share / 100 * (rows.shape[-1] - 1)) for share in percentiles]
    results = [rows.kthvalue(index + 1, dim=-1)[0] for index in indices]
    if tensor.is_floating_point():
        # NaN counts as the largest value in torch's order.
        is_nan = rows.isnan().any(-1)
        results = [result.masked_fill(is_nan, nan) for result in results]
    if keepdims:
        shape = [1 if index in axes else size for index, size in enumerate(tensor.shape)]
        results = [result.reshape(shape) for result in results]
    return torch.stack(results)


def _extreme(name: str, tensor: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    # `amax` would distribute the gradient among equal values. FastEstimator gives it to the first.
    if axis is None:
        value: Tensor = getattr(tensor.reshape(-1), name)(0)[0]
        return value.reshape([1] * tensor.dim()) if keepdims else value
    if len(axis) == 1:
        values: Tensor = getattr(tensor, name)(axis[0], keepdims)[0]
        return values
    for index in sorted(axis, reverse=True):
        tensor = getattr(tensor, name)(dim=index, keepdim=True)[0]
    return tensor if keepdims or not len(axis) else tensor.squeeze(axis)
