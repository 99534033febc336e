"""Averages gradients over processes where DistributedDataParallel does not."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from fastnet.backend.torch.full_tensors import shard_like
from fastnet.backend.torch.wrappers import is_sharded


def average_gradients(
    gradients: Sequence[Tensor | None], parameters: Sequence[Tensor], groups: Iterable[Any]
) -> list[Tensor | None]:
    """Average the gradients of parameters over process groups, with one all-reduce per dtype.

    A gradient that only some processes have counts as 0 in the others. Sharded gradients are
    returned as they are, because FSDP2 has averaged them; full gradients of sharded parameters are
    sharded.

    Raises:
        ValueError: If a gradient is sparse.
    """
    groups = list(groups)
    share = 1 / math.prod(map(dist.get_world_size, groups))
    are_sharded = any(map(is_sharded, gradients))
    buckets: defaultdict[Any, list[int]] = defaultdict(list)
    for i, parameter in enumerate(parameters):
        if not (are_sharded and is_sharded(parameter)):
            buckets[parameter.dtype, parameter.device].append(i)
    averages = list(gradients)
    for bucket in buckets.values():
        flat = _flatten([gradients[i] for i in bucket], [parameters[i] for i in bucket])
        flat.mul_(share)  # DistributedDataParallel divides before it adds, too.
        for group in groups:
            dist.all_reduce(flat, group=group)
        sizes = [*(parameters[i].numel() for i in bucket), len(bucket)]
        *means, exist = torch.split(flat, sizes)
        has_all = all(gradients[i] is not None for i in bucket)
        # Reading numbers waits for the device.
        counts = [1.0] * len(bucket) if has_all else exist.tolist()
        for i, mean, count in zip(bucket, means, counts, strict=True):
            if count:
                averages[i] = shard_like(mean.view(parameters[i].shape), parameters[i])
    return averages


def broadcast_buffers(model: DistributedDataParallel) -> None:
    """Broadcast the buffers of rank 0, once after each update, as the wrapper's forward does."""
    if model.require_forward_param_sync and model.broadcast_buffers:
        source = dist.get_global_rank(model.process_group, 0)
        for buffer in model.modules_buffers:
            dist.broadcast(buffer, source, group=model.process_group)
    # A second broadcast would overwrite what the backward pass of the first forward needs.
    model.require_forward_param_sync = False


def _flatten(gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
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
