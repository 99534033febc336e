"""Tensors that processes have parts of, made whole to be saved, and taken apart when loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from fastnet._nest import leaves_of, map_leaves
from fastnet.backend.torch.engines import is_sharded

__all__ = ["has_parts", "own_part", "part_of_whole", "parts_of_memory", "whole"]

T = TypeVar("T")


def has_parts(data: Any) -> bool:
    """Return whether processes have to come together to save something.

    Args:
        data: A nest.

    Returns:
        True if there is a tensor in it that this process has only a part of.
    """
    return any(map(is_sharded, leaves_of(data)))


def whole(data: T) -> T:
    """Put the parts of tensors together. All processes call this at the same time.

    Args:
        data: A nest.

    Returns:
        The same structure; what was in parts is on the CPU, and in this process's own.
    """
    return data if not has_parts(data) else map_leaves(data, _whole)


def _whole(value: Any) -> Any:
    if not is_sharded(value):
        return value
    # one at a time: a device need have room for the largest, not for all
    return value.detach().full_tensor().cpu()


def part_of_whole(value: Any, own: Any) -> Any:
    """Take this process's part of a whole tensor.

    Args:
        value: The tensor, which each process has.
        own: A tensor of the same shape that is in parts, or any other.

    Returns:
        A tensor in parts like `own`, on its device; `value` itself if `own` is in one.
    """
    if not is_sharded(own) or is_sharded(value) or not isinstance(value, torch.Tensor):
        return value
    from torch.distributed.tensor import distribute_tensor

    moved = value.to(own.device)
    # each process has it: there is nothing to send
    return distribute_tensor(moved, own.device_mesh, own.placements, src_data_rank=None)


def parts_of_memory(
    memory: Mapping[str, Any], parameter: torch.Tensor, before: Mapping[str, Any]
) -> dict[str, Any]:
    """Take this process's part of what an optimizer remembers of a parameter.

    Args:
        memory: What it remembers, in whole tensors.
        parameter: The parameter.
        before: What it has remembered so far.

    Returns:
        The same with parts where the parameter has them: of tensors of its shape, and of others
        that were in parts before.
    """
    if not is_sharded(parameter):
        return dict(memory)
    parts = {}
    for name, value in memory.items():
        like: Any = before.get(name)
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape and value.dim():
            like = parameter
        parts[name] = part_of_whole(value, like)
    return parts


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return what a process has of a tensor, in the same memory.

    Args:
        tensor: The tensor, in parts or not.
    """
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    with torch.no_grad():
        part: torch.Tensor = sharded.to_local()
    return part
