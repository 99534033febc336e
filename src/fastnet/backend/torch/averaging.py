"""Gradients averaged over processes, and buffers handed out, outside of an engine's own way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fastnet.backend.torch.engines import is_sharded

__all__ = ["average", "average_held", "averaged", "hand_out_buffers"]

# what DistributedDataParallel collects before it communicates
_MOST_BYTES = 25 * 2**20


def average(
    gradients: Sequence[torch.Tensor | None],
    parameters: Sequence[torch.Tensor],
    groups: Iterable[Any],
) -> list[torch.Tensor | None]:
    """Average gradients over processes, in as few collectives as there are buckets of 25 MiB.

    A gradient that some processes do not have counts as 0 there, so that a part of a model may be
    unused in some of them. Which gradients there are at all goes along with them.

    Args:
        gradients: This process's, one for each parameter; None for none. They are not changed.
        parameters: What they are of, in the same order in each process.
        groups: The process groups.

    Returns:
        The averages, of the types of the parameters; None for what no process has.

    Raises:
        ValueError: If a gradient is sparse.
    """
    groups = list(groups)
    share = 1.0
    for group in groups:
        share /= dist.get_world_size(group)
    if share == 1.0:
        return list(gradients)
    averages: list[torch.Tensor | None] = [None] * len(gradients)
    under_way = []
    for places in _buckets(parameters):
        flat = _flat([gradients[place] for place in places], [parameters[one] for one in places])
        flat.mul_(share)  # before the sum, as DistributedDataParallel does
        work = dist.all_reduce(flat, group=groups[0], async_op=True) if groups else None
        under_way.append((places, flat, work))
    for places, flat, work in under_way:
        if work is not None:
            work.wait()
        for group in groups[1:]:
            dist.all_reduce(flat, group=group)
        sizes = [parameters[place].numel() for place in places]
        *values, counts = torch.split(flat, [*sizes, len(places)])
        for place, value, count in zip(places, values, counts.tolist(), strict=True):
            if count:
                averages[place] = value.view(parameters[place].shape)
    return averages


def average_held(parameters: Sequence[torch.nn.Parameter], groups: Iterable[Any]) -> None:
    """Put the averages over processes in the place of the gradients that parameters hold.

    Args:
        parameters: The parameters, in the same order in each process.
        groups: The process groups.

    Raises:
        ValueError: If a gradient is sparse.
    """
    averages = average([one.grad for one in parameters], parameters, groups)
    for parameter, gradient in zip(parameters, averages, strict=True):
        parameter.grad = gradient


def averaged(
    gradients: Sequence[torch.Tensor | None],
    parameters: Sequence[torch.Tensor],
    groups: Iterable[Any],
) -> list[torch.Tensor | None]:
    """Average gradients that are this process's own; those that are sharded are averages already.

    Args:
        gradients: One for each parameter; None for none.
        parameters: What they are of, in the same order in each process.
        groups: The process groups.

    Returns:
        The averages, sharded as the parameters are.

    Raises:
        ValueError: If a gradient is sparse.
    """
    found = list(gradients)
    places = [place for place, one in enumerate(found) if not is_sharded(one)]
    if places:
        wholes = average(
            [found[place] for place in places], [parameters[place] for place in places], groups
        )
        for place, whole in zip(places, wholes, strict=True):
            found[place] = _like(whole, parameters[place])
    return found


def _like(gradient: torch.Tensor | None, parameter: torch.Tensor) -> torch.Tensor | None:
    """Cut out of an average what the process has of the parameter; nothing is communicated."""
    if gradient is None or not is_sharded(parameter) or is_sharded(gradient):
        return gradient
    from torch.distributed.tensor import distribute_tensor

    held: Any = parameter
    cut: torch.Tensor = distribute_tensor(
        gradient, held.device_mesh, held.placements, src_data_rank=None
    )
    return cut


def hand_out_buffers(model: DistributedDataParallel) -> None:
    """Give each process the first one's buffers, as the engine does before a forward pass.

    Args:
        model: The model in its wrapper, which says which buffers these are.
    """
    if not model.broadcast_buffers:
        return
    source = dist.get_global_rank(model.process_group, 0)
    by_type: dict[Any, list[torch.Tensor]] = {}
    for buffer in model.modules_buffers:
        by_type.setdefault((buffer.dtype, buffer.device), []).append(buffer)
    with torch.no_grad():
        for buffers in by_type.values():
            flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
            dist.broadcast(flat, source, group=model.process_group)
            parts = torch.split(flat, [buffer.numel() for buffer in buffers])
            for buffer, part in zip(buffers, parts, strict=True):
                buffer.copy_(part.view(buffer.shape))


def _buckets(parameters: Sequence[torch.Tensor]) -> list[list[int]]:
    """Share the places of parameters out, those of one type and device together."""
    full: list[list[int]] = []
    filling: dict[Any, tuple[list[int], int]] = {}
    for place, parameter in enumerate(parameters):
        kind = parameter.dtype, parameter.device
        places, size = filling.get(kind, ([], 0))
        places.append(place)
        size += parameter.numel() * parameter.element_size()
        if size < _MOST_BYTES:
            filling[kind] = places, size
        else:
            full.append(places)
            filling.pop(kind, None)
    return [*full, *(places for places, _ in filling.values())]


def _flat(
    gradients: Sequence[torch.Tensor | None], parameters: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Lay gradients behind each other, and behind them for each whether it is there."""
    # of a sharded parameter it is the whole that is averaged
    first = torch.empty(0, dtype=parameters[0].dtype, device=parameters[0].device)
    pieces = []
    for gradient, parameter in zip(gradients, parameters, strict=True):
        if gradient is None:
            pieces.append(first.new_zeros(parameter.numel()))
            continue
        if gradient.layout != torch.strided:
            raise ValueError(
                "A sparse gradient cannot be averaged over processes here. Use dense gradients "
                "(nn.Embedding(..., sparse=False))."
            )
        pieces.append(gradient.detach().to(first).reshape(-1))
    there = [float(gradient is not None) for gradient in gradients]
    return torch.cat([*pieces, first.new_tensor(there)])
