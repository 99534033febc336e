"""Averages gradients over processes where DistributedDataParallel does not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from fastnet.backend.torch.collectives import are_traced, average_over, broadcast_from_first
from fastnet.backend.torch.full_tensors import shard_like
from fastnet.backend.torch.wrappers import is_sharded

# As DistributedDataParallel's by default.
_BUCKET_BYTES = 25 * 2**20


def average_gradients(
    gradients: Sequence[Tensor | None], parameters: Sequence[Tensor], groups: Iterable[Any]
) -> list[Tensor | None]:
    """Average the gradients of parameters over process groups, with an all-reduce per bucket.

    A gradient that only some processes have counts as 0 in the others. Sharded gradients are
    returned as they are, because FSDP2 has averaged them; full gradients of sharded parameters are
    sharded.

    Raises:
        ValueError: If a gradient is sparse.
        RuntimeError: If there is no gradient of a parameter in a trace.
    """
    groups = list(groups)
    are_sharded = any(map(is_sharded, gradients))
    averaged = [i for i, one in enumerate(parameters) if not (are_sharded and is_sharded(one))]
    averages = list(gradients)
    for bucket in _buckets(averaged, parameters):
        own = [gradients[i] for i in bucket]
        has_all = all(one is not None for one in own)
        if are_traced() and not has_all:
            raise RuntimeError(
                "a parameter that is trained has no gradient here, but may have one in another "
                "process; freeze it by requires_grad_(False)"
            )
        flat = average_over(_flatten(own, [parameters[i] for i in bucket]), groups)
        sizes = [*(parameters[i].numel() for i in bucket), len(bucket)]
        *means, exist = torch.split(flat, sizes)
        # Reading numbers waits for the device.
        counts = [1.0] * len(bucket) if has_all else exist.tolist()
        for i, mean, count in zip(bucket, means, counts, strict=True):
            if count:
                # Clipping writes to them. A graph would copy the bucket for each write to a view.
                own_mean = mean.clone() if are_traced() else mean
                averages[i] = shard_like(own_mean.view(parameters[i].shape), parameters[i])
    return averages


def _buckets(indices: Iterable[int], parameters: Sequence[Tensor]) -> Iterator[list[int]]:
    """Yield lists of the indices of parameters whose gradients are averaged together."""
    open_buckets: defaultdict[Any, list[int]] = defaultdict(list)
    sizes: defaultdict[Any, int] = defaultdict(int)
    for i in indices:
        kind = parameters[i].dtype, parameters[i].device
        open_buckets[kind].append(i)
        sizes[kind] += parameters[i].nbytes
        if sizes[kind] >= _BUCKET_BYTES:
            yield open_buckets.pop(kind)
            del sizes[kind]
    yield from open_buckets.values()


def broadcast_buffers(model: DistributedDataParallel) -> None:
    """Broadcast the buffers of rank 0, once after each update, as the wrapper's forward does."""
    if model.require_forward_param_sync and model.broadcast_buffers:
        ignored = model.parameters_to_ignore
        buffers = [one for name, one in model.module.named_buffers() if name not in ignored]
        if buffers:
            with torch.no_grad():
                results = broadcast_from_first(buffers, model.process_group)
                for buffer, result in zip(buffers, results, strict=True):
                    buffer.copy_(result)
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
    if all(gradient is not None for gradient in gradients):
        return torch.cat([*pieces, first.new_ones(len(pieces))])
    exist = [float(gradient is not None) for gradient in gradients]
    return torch.cat([*pieces, first.new_tensor(exist)])
