"""Averages gradients over processes where DistributedDataParallel does not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fastnet.backend.torch.full_tensors import shard_like
from fastnet.backend.torch.wrappers import is_sharded

__all__ = ["average", "average_in_place", "broadcast_buffers"]

# The default size of DistributedDataParallel's buckets.
_BUCKET_BYTES = 25 * 2**20


def average(
    gradients: Sequence[torch.Tensor | None],
    parameters: Sequence[torch.Tensor],
    groups: Iterable[Any],
) -> list[torch.Tensor | None]:
    """Average the gradients of parameters over process groups, in buckets of 25 MiB.

    A gradient that only some processes have counts as 0 in the others. Sharded gradients are
    returned as they are, because FSDP2 has averaged them; full gradients of sharded parameters are
    sharded.

    Raises:
        ValueError: If a gradient is sparse.
    """
    groups = list(groups)
    averages = list(gradients)
    share = 1.0
    for group in groups:
        share /= dist.get_world_size(group)
    reduced = []
    for bucket in _buckets(gradients, parameters):
        flat = _flatten([gradients[i] for i in bucket], [parameters[i] for i in bucket])
        flat.mul_(share)  # DistributedDataParallel divides before it adds, too.
        work = dist.all_reduce(flat, group=groups[0], async_op=True)
        reduced.append((bucket, flat, work))
    for bucket, flat, work in reduced:
        if work is not None:
            work.wait()
        for group in groups[1:]:
            dist.all_reduce(flat, group=group)
        sizes = [parameters[i].numel() for i in bucket]
        *values, counts = torch.split(flat, [*sizes, len(bucket)])
        for i, value, count in zip(bucket, values, counts.tolist(), strict=True):
            mean = value.view(parameters[i].shape) if count else None
            averages[i] = shard_like(mean, parameters[i])
    return averages


def average_in_place(parameters: Sequence[torch.nn.Parameter], groups: Iterable[Any]) -> None:
    """Replace the `.grad` of parameters by its average over process groups."""
    averages = average([one.grad for one in parameters], parameters, groups)
    for parameter, gradient in zip(parameters, averages, strict=True):
        parameter.grad = gradient


def broadcast_buffers(model: DistributedDataParallel) -> None:
    """Broadcast the buffers of rank 0, once after each update, as the wrapper's forward does."""
    if model.require_forward_param_sync and model.broadcast_buffers:
        source = dist.get_global_rank(model.process_group, 0)
        for buffer in model.modules_buffers:
            dist.broadcast(buffer, source, group=model.process_group)
    # A second broadcast would overwrite what the backward pass of the first forward needs.
    model.require_forward_param_sync = False


def _buckets(
    gradients: Sequence[torch.Tensor | None], parameters: Sequence[torch.Tensor]
) -> list[list[int]]:
    """Group the indices of gradients by dtype and device, up to a size; skip sharded ones."""
    are_sharded = any(map(is_sharded, gradients))
    full: list[list[int]] = []
    filling: dict[Any, tuple[list[int], int]] = {}
    for i, parameter in enumerate(parameters):
        if are_sharded and is_sharded(parameter):
            continue
        kind = parameter.dtype, parameter.device
        indices, size = filling.pop(kind, ([], 0))
        indices.append(i)
        size += parameter.numel() * parameter.element_size()
        if size < _BUCKET_BYTES:
            filling[kind] = indices, size
        else:
            full.append(indices)
    return [*full, *(indices for indices, _ in filling.values())]


def _flatten(
    gradients: Sequence[torch.Tensor | None], parameters: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Concatenate gradients, followed by a 1 for each that exists and a 0 for each other."""
    first = torch.empty(0, dtype=parameters[0].dtype, device=parameters[0].device)
    pieces = []
    for gradient, parameter in zip(gradients, parameters, strict=True):
        if gradient is None:
            pieces.append(first.new_zeros(parameter.numel()))
            continue
        if gradient.layout != torch.strided:
            raise ValueError(
                "A sparse gradient cannot be averaged over processes. Use dense gradients "
                "(nn.Embedding(..., sparse=False))."
            )
        pieces.append(gradient.detach().to(first).reshape(-1))
    exist = [float(gradient is not None) for gradient in gradients]
    return torch.cat([*pieces, first.new_tensor(exist)])
