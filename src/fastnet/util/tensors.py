"""Operations on tensors, and on nests of tensors, of any framework."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache, lru_cache
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeVar

from fastnet._nest import NestMap, unless

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

T = TypeVar("T")


def detach_tensors(data: T) -> T:
    """Detach the torch tensors of a nest from their graphs.

    Args:
        data: A tensor, or tensors in dicts, lists, tuples, namedtuples, sets and dataclasses, to
            any depth.

    Returns:
        The same structure, of the same types, with each tensor detached.

    >>> import torch
    >>> weight = torch.ones(2, requires_grad=True)
    >>> detach_tensors({"loss": weight.sum(), "rest": (weight, "text")})
    {'loss': tensor(2.), 'rest': (tensor([1., 1.]), 'text')}
    """
    if "torch" not in sys.modules:  # There can be no tensors before torch is imported.
        return data
    return _detacher()(data)


def move_tensors_to_device(data: T, device: str | torch.device, non_blocking: bool = False) -> T:
    """Move the torch tensors of a nest to a device.

    Args:
        data: A tensor, or tensors in dicts, lists, tuples, namedtuples, sets and dataclasses, to
            any depth.
        device: The target device.
        non_blocking: Whether to return before the copies have finished. Synchronize the GPU before
            reading tensors that were copied from it.

    Returns:
        The same structure, of the same types, with each tensor on `device`. Tensors that are
        already there are not copied. Dicts, lists and sets are new objects.

    Raises:
        RuntimeError: If there is no such device.

    >>> import torch
    >>> move_tensors_to_device([torch.ones(2), 7], "cpu")
    [tensor([1., 1.]), 7]
    """
    if "torch" not in sys.modules:
        return data
    return _mover(device, non_blocking)(data)


def get_batch_size(data: Mapping[str, Any]) -> int:
    """Return the number of samples in a batch.

    Args:
        data: The batch. Values without a shape, and scalars, are ignored.

    Returns:
        The length of the first axis, which all tensors share.

    Raises:
        AssertionError: If `data` is not a mapping, if no value has an axis, or if the lengths
            differ.

    >>> import numpy as np
    >>> get_batch_size({"x": np.ones((8, 3)), "y": np.ones(8), "names": ["a", "b"]})
    8
    """
    if not isinstance(data, Mapping):
        raise AssertionError(
            f"A batch must be a dict of keys to tensors, but got {type(data).__name__}."
        )
    sizes = {
        key: int(value.shape[0])
        for key, value in data.items()
        if hasattr(value, "shape") and len(value.shape) > 0
    }
    unique = set(sizes.values())
    if not unique:
        raise AssertionError(
            f"The batch has no size: none of its keys {sorted(map(str, data))} holds a tensor with "
            "at least one axis."
        )
    if len(unique) > 1:
        raise AssertionError(
            f"The batch has no single size, because the first axes of its tensors differ: {sizes}."
        )
    return unique.pop()


def to_number(data: Any) -> NDArray[Any]:
    """Convert a number or a tensor of any framework to a numpy array.

    Args:
        data: A number, a string, an array, or a tensor on any device, with or without a graph.

    Returns:
        A new array with the same values. A bfloat16 tensor of torch becomes float32, because numpy
        has no bfloat16.

    >>> to_number(4.0), to_number([1, 2])
    (array(4.), array([1, 2]))
    """
    import numpy as np

    torch = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.Tensor):
        data = data.detach()
        if data.dtype is torch.bfloat16:
            data = data.float()
        data = data.cpu().resolve_conj().resolve_neg().numpy()
    elif hasattr(data, "numpy") and hasattr(data, "dtype"):
        # np.array() warns about TensorFlow's tensors.
        data = data.numpy()
    return np.array(data)


@cache
def _detacher() -> NestMap:
    import torch

    # The unbound method costs one C call per tensor; a Python function would cost more.
    return NestMap(torch.Tensor, torch.Tensor.detach)


@lru_cache(maxsize=64)
def _mover(device: str | torch.device, non_blocking: bool) -> NestMap:
    import torch

    # Comparing `is_cpu` or `device` is faster than calling `to` on a tensor that is already there.
    # "cuda" without an index never equals a tensor's device, so `to` decides.
    attribute = "device"
    expected: object = torch.device(device)
    if expected == torch.device("cpu"):
        attribute, expected = "is_cpu", True
    move = methodcaller("to", device, non_blocking=non_blocking)
    return NestMap(torch.Tensor, unless(torch.Tensor, attribute, expected, move))
