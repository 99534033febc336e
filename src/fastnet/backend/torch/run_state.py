"""The state of models and their optimizers in torch, and tensors as blocks of a file."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from fastnet.backend.archive import Block
from fastnet.backend.model_metadata import name_of, optimizers_of
from fastnet.backend.torch._internals import put_versions, sparse_parts, versions_in
from fastnet.backend.torch.full_tensors import full_tensors, full_weights
from fastnet.backend.torch.optimizer_state import load_optimizer_state, optimizer_state
from fastnet.backend.torch.preserve_state import require_variables
from fastnet.backend.torch.weights import load_weights, match_names
from fastnet.backend.torch.wrappers import unwrap_all
from fastnet.errors import shorten
from fastnet.types import Model


def model_state(model: Model) -> dict[str, Any]:
    """Return the state of a model and its optimizers; collective if the model is sharded."""
    require_variables([model], "and cannot be saved without them")
    weights = full_weights(model)
    return {
        "weights": weights,
        "versions": versions_in(weights) or {},
        "trainable": {
            name: parameter.requires_grad for name, parameter in _parameters_of(model).items()
        },
        "optimizers": [
            full_tensors(optimizer_state(optimizer, model)) for optimizer in optimizers_of(model)
        ],
    }


def load_model_state(model: Model, state: Any) -> None:
    """Load the result of `model_state`; raise a ValueError if it does not fit."""
    source = f"the state of model '{name_of(model)}'"
    weights = OrderedDict(state["weights"])
    put_versions(weights, state["versions"])
    # First, because it gives lazy parameters their shapes.
    load_weights(model, weights, source, exact=True)
    parameters, flags = _parameters_of(model), state["trainable"]
    names = match_names(flags, parameters)
    if names is None:
        differing = sorted(flags.keys() ^ parameters.keys())
        raise ValueError(f"{source} has other parameters than the model: {shorten(differing)}")
    for name, flag in flags.items():
        parameters[names[name]].requires_grad_(flag)
    for optimizer, saved in zip(optimizers_of(model), state["optimizers"], strict=True):
        load_optimizer_state(optimizer, model, saved, source)


def _parameters_of(model: Model) -> dict[str, torch.nn.Parameter]:
    """Return the parameters of a model by all of their names."""
    return dict(unwrap_all(model).named_parameters(remove_duplicate=False))


def to_block(value: Any) -> Block | list[Any] | None:
    """Convert a tensor to its type, shape and bytes, or parts; return None for anything else."""
    if not isinstance(value, torch.Tensor):
        return None
    if value.layout == torch.sparse_coo:
        return sparse_parts(value)
    name = str(value.dtype).removeprefix("torch.")
    if value.is_quantized or value.is_meta or value.layout != torch.strided:
        return Block(f"{name}, {value.layout} on {value.device}", (), b"")
    # A lazily conjugated or negated tensor has no bytes of its own.
    plain = value.detach().cpu().resolve_conj().resolve_neg()
    flat = plain.contiguous().reshape(-1)
    return Block(name, tuple(value.shape), flat.view(torch.uint8).numpy())


def tensor_makers(read: Callable[[str], Block]) -> dict[str, Callable[..., torch.Tensor]]:
    """Return the functions that make tensors of the results of `to_block`, by kind."""
    return {"tensor": lambda key: _from_block(read(key)), "sparse": _sparse_tensor}


def _from_block(block: Block) -> torch.Tensor:
    """Make a tensor on the CPU that shares the memory of a block."""
    dtype = getattr(torch, block.dtype)
    if not len(block.data):
        return torch.empty(block.shape, dtype=dtype)
    return torch.frombuffer(block.data, dtype=dtype).reshape(block.shape)


def _sparse_tensor(indices: Any, values: Any, shape: Any, is_coalesced: bool) -> torch.Tensor:
    """Make a sparse tensor of the result of `sparse_parts`."""
    return torch.sparse_coo_tensor(
        indices, values, shape, is_coalesced=is_coalesced, check_invariants=True
    )
