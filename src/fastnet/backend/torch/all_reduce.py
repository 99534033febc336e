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
        RuntimeError: If a parameter has no gradient while the step is traced.
    """
    groups = list(groups)
    are_sharded = any(map(is_sharded, gradients))
    indices = [
        index
        for index, parameter in enumerate(parameters)
        if not (are_sharded and is_sharded(parameter))
    ]
    averages = list(gradients)
    for bucket in _buckets(indices, parameters):
        bucket_gradients = [gradients[i] for i in bucket]
        has_all = all(gradient is not None for gradient in bucket_gradients)
        if are_traced() and not has_all:
            raise RuntimeError(
                "a parameter that is trained has no gradient here, but may have one in another "
                "process; freeze it by requires_grad_(False)"
            )
        flat = average_over(_flatten(bucket_gradients, [parameters[i] for i in bucket]), groups)
        sizes = [*(parameters[i].numel() for i in bucket), len(bucket)]
        *means, share_tensor = torch.split(flat, sizes)
        # The shares of processes that have each gradient. Reading them waits for the device.
        shares = [1.0] * len(bucket) if has_all else share_tensor.tolist()
        for i, mean, share in zip(bucket, means, shares, strict=True):
            if share:
                # Clipping writes to the averages, and for each write to a view a graph would copy
                # the whole bucket.
                average = mean.clone() if are_traced() else mean
                averages[i] = shard_like(average.view(parameters[i].shape), parameters[i])
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
        named_buffers = model.module.named_buffers()
        buffers = [buffer for name, buffer in named_buffers if name not in ignored]
        if buffers:
            with torch.no_grad():
                results = broadcast_from_first(buffers, model.process_group)
                for buffer, result in zip(buffers, results, strict=True):
                    buffer.copy_(result)
    # A second broadcast would overwrite what the backward pass of the first forward needs.
    model.require_forward_param_sync = False


def _flatten(gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    """Concatenate gradients, zeros for missing ones, and a flag each: 1 if it exists, else 0."""
    template = torch.empty(0, dtype=parameters[0].dtype, device=parameters[0].device)
    pieces = []
    for gradient, parameter in zip(gradients, parameters, strict=True):
        if gradient is None:
            pieces.append(template.new_zeros(parameter.numel()))
            continue
        if gradient.layout != torch.strided:
            raise ValueError(
                "A sparse gradient cannot be averaged over processes. Use dense gradients "
                "(nn.Embedding(..., sparse=False))."
            )
        pieces.append(gradient.detach().to(template).reshape(-1))
    if all(gradient is not None for gradient in gradients):
        return torch.cat([*pieces, template.new_ones(len(pieces))])
    flags = [float(gradient is not None) for gradient in gradients]
    return torch.cat([*pieces, template.new_tensor(flags)])
