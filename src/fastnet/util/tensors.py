"""Functions over tensors and nests of them, for whichever framework they come from."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache, lru_cache
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeVar

from fastnet._nest import NestMap, unless

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

__all__ = ["detach_tensors", "get_batch_size", "move_tensors_to_device", "to_number"]

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
    if "torch" not in sys.modules:  # then nobody can have made a tensor
        return data
    return _detacher()(data)


def move_tensors_to_device(data: T, device: str | torch.device, non_blocking: bool = False) -> T:
    """Move the torch tensors of a nest to a device.

    Args:
        data: A tensor, or tensors in dicts, lists, tuples, namedtuples, sets and dataclasses, to
            any depth.
        device: Where to.
        non_blocking: Whether not to wait for the copies. What comes back from a GPU must then not
            be read before the GPU has been synchronised.

    Returns:
        The same structure, of the same types, with each tensor on `device`; one that is there
        already is itself. Dicts, lists and sets are new ones.

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
    """Read off a batch how many samples it holds.

    Args:
        data: The batch. Values without a shape, and scalars, do not count.

    Returns:
        The length of the first axis, which all values share.

    Raises:
        AssertionError: If `data` is not a mapping, holds nothing with an axis, or if its values
            disagree.

    >>> import numpy as np
    >>> get_batch_size({"x": np.ones((8, 3)), "y": np.ones(8), "names": ["a", "b"]})
    8
    """
    if not isinstance(data, Mapping):
        raise AssertionError(
            f"The batch size is read off a dict of keys to tensors, but got {type(data).__name__}."
        )
    sizes = {
        key: int(value.shape[0])
        for key, value in data.items()
        if hasattr(value, "shape") and len(value.shape) > 0
    }
    found = set(sizes.values())
    if not found:
        raise AssertionError(
            f"The batch has no size: none of its keys {sorted(map(str, data))} holds a tensor with "
            "an axis."
        )
    if len(found) > 1:
        raise AssertionError(
            f"The batch has no single size, because the first axes of its tensors differ: {sizes}."
        )
    return found.pop()


def to_number(data: Any) -> NDArray[Any]:
    """Turn a number or a tensor of any framework into a numpy array.

    Args:
        data: A number, a string, an array, or a tensor on any device, inside a graph or not.

    Returns:
        A new array with the same values. A bfloat16 tensor of torch becomes float32, since numpy
        has no such type by itself.

    >>> to_number(4.0), to_number([1, 2])
    (array(4.), array([1, 2]))
    """
    import numpy as np

    torch = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.Tensor):
        return np.array(tensor_to_numpy(data))
    if hasattr(data, "numpy") and hasattr(data, "dtype"):
        # numpy asks such a tensor in a way that it warns of
        data = data.numpy()
    return np.array(data)


def tensor_to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """View a torch tensor as a numpy array.

    Args:
        tensor: A tensor on any device, inside a graph or not.

    Returns:
        An array that shares memory with the tensor where that is possible: on the CPU, and of a
        type that numpy has. bfloat16 becomes float32, which holds each of its values exactly.
    """
    import torch

    tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    array: np.ndarray[Any, Any] = tensor.cpu().resolve_conj().resolve_neg().numpy()
    return array


@cache
def _detacher() -> NestMap:
    import torch

    # the method itself, not a function around it, so that a leaf costs one C call
    return NestMap(torch.Tensor, torch.Tensor.detach)


@lru_cache(maxsize=64)
def _mover(device: str | torch.device, non_blocking: bool) -> NestMap:
    import torch

    # A tensor tells its device sooner than `to` finds out that it is there, and soonest of all
    # whether that is the CPU. A GPU has a number, so that "cuda" is no device that a tensor tells
    # of: `to` says which one is meant.
    there: tuple[str, object] = "device", torch.device(device)
    if there[1] == torch.device("cpu"):
        there = "is_cpu", True
    move = methodcaller("to", device, non_blocking=non_blocking)
    return NestMap(torch.Tensor, unless(torch.Tensor, *there, move))
