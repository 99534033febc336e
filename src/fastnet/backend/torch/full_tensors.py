"""Gathers sharded tensors for saving, and reshards them on load."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Module

from fastnet._nest import leaves_of, map_leaves
from fastnet.backend.torch._internals import put_versions, versions_in
from fastnet.backend.torch.wrappers import is_sharded, unwrap_all

T = TypeVar("T")


def has_shards(data: Any) -> bool:
    """Return whether a nest contains a sharded tensor."""
    return any(map(is_sharded, leaves_of(data)))


def full_weights(model: Module) -> dict[str, Any]:
    """Return the weights of a model, wrapped or not; collective, and for rank 0, if sharded."""
    inner = unwrap_all(model)
    weights: dict[str, Any] = inner.state_dict()
    if not has_shards(weights):
        return weights
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    full = OrderedDict(get_model_state_dict(inner, options=options))
    put_versions(full, versions_in(weights))
    return full


def full_tensors(data: T) -> T:
    """Gather the sharded tensors of a nest on the CPU; a collective call if there are any."""
    return map_leaves(data, _full_tensor) if has_shards(data) else data


def _full_tensor(value: Any) -> Any:
    # Moving each tensor at once leaves a device with room for only the largest one.
    return value.detach().full_tensor().cpu() if is_sharded(value) else value


def shard_like(value: Any, like: Any) -> Any:
    """Shard a full tensor as `like` is sharded; return any other value as it is."""
    if not is_sharded(like) or is_sharded(value) or not isinstance(value, Tensor):
        return value
    from torch.distributed.tensor import distribute_tensor

    # Every process has the full tensor, so that none has to send it.
    return distribute_tensor(
        value.to(like.device), like.device_mesh, like.placements, src_data_rank=None
    )


def local_tensor(tensor: Tensor) -> Tensor:
    """Return this process's shard of a tensor, in the same memory."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    with torch.no_grad():
        local: Tensor = sharded.to_local()
    return local
