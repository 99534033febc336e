"""What a run in torch goes on from: models, their optimizers, and random numbers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from fastnet.backend.archive import Block
from fastnet.backend.model_metadata import name_of, optimizers_of
from fastnet.backend.torch._internals import put_versions, versions_in
from fastnet.backend.torch.names import innermost
from fastnet.backend.torch.optimizer_state import (
    complaint_about,
    kept_optimizer,
    load_state,
    state_of,
)
from fastnet.backend.torch.weights import fill, fit_weights, kept_weights
from fastnet.backend.torch.wholes import whole

__all__ = [
    "check_model",
    "check_random",
    "give",
    "kept_model",
    "kept_random",
    "load_model",
    "load_random",
    "make",
    "random_state",
    "state_of_model",
]

_WEIGHTS, _VERSIONS, _OPTIMIZERS = "weights", "versions", "optimizers"
_CPU, _CUDA = "cpu", "cuda"


def state_of_model(model: Any) -> dict[str, Any]:
    """Return what a model and its optimizers remember.

    Args:
        model: The model, wrapped or not. Of one that is sharded all processes ask this together.
    """
    weights = innermost(model).state_dict()
    return {
        _WEIGHTS: whole(weights),
        _VERSIONS: versions_in(weights) or {},
        _OPTIMIZERS: [whole(state_of(one)) for one in optimizers_of(model)],
    }


def check_model(model: Any, state: Any, source: str) -> dict[str, Any]:
    """Check that a state is that of a model and of its optimizers.

    Args:
        model: The model.
        state: What is said to be its state.
        source: Where that is from, for the error's text.

    Returns:
        The state, for `load_model`.

    Raises:
        ValueError: If it is not.
    """
    weights = OrderedDict(state[_WEIGHTS])
    put_versions(weights, state[_VERSIONS])
    optimizers, states = optimizers_of(model), state[_OPTIMIZERS]
    if len(optimizers) != len(states):
        raise ValueError(
            f"{source} has {len(states)} optimizers of model '{name_of(model)}', which has "
            f"{len(optimizers)}. Build the model with those that were saved."
        )
    for optimizer, one in zip(optimizers, states, strict=True):
        complaint = complaint_about(one, optimizer)
        if complaint:
            raise ValueError(
                f"{source} is not of an optimizer of model '{name_of(model)}', "
                f"{type(optimizer).__name__}: {complaint}. Build the model with the optimizer "
                "that was saved."
            )
    return {**state, _WEIGHTS: fit_weights(model, weights, source)}


def load_model(model: Any, state: dict[str, Any], source: str) -> None:
    """Restore the state of a model and its optimizers.

    Args:
        model: The model.
        state: What `check_model` gave for it.
        source: Where that is from, for the error's text.
    """
    for optimizer, one in zip(optimizers_of(model), state[_OPTIMIZERS], strict=True):
        load_state(optimizer, one)
    fill(model, state[_WEIGHTS], source)


@contextmanager
def kept_model(model: Any) -> Iterator[None]:
    """Restore the state of a model and its optimizers if something fails meanwhile.

    Args:
        model: The model.
    """
    with ExitStack() as kept:
        kept.enter_context(kept_weights(model))
        for optimizer in optimizers_of(model):
            kept.enter_context(kept_optimizer(optimizer))
        yield


def random_state(models: list[Any]) -> dict[str, Any]:
    """Return the states of torch's generators.

    Args:
        models: Not used; in torch no model has a generator of its own.
    """
    return {
        _CPU: torch.get_rng_state(),
        # asking is no reason to start a device up
        _CUDA: torch.cuda.get_rng_state_all() if _is_cuda_up() else [],
    }


def check_random(models: list[Any], state: Any, source: str) -> None:
    """Check that states are such of torch's generators.

    Args:
        models: Not used.
        state: What is said to be them.
        source: Where they are from, for the error's text.

    Raises:
        ValueError: If they are not.
    """
    try:
        torch.Generator().set_state(state[_CPU])
        for number, one in enumerate(state[_CUDA]):
            if torch.cuda.is_available() and number < torch.cuda.device_count():
                torch.Generator(f"cuda:{number}").set_state(one)
    except Exception as error:
        raise ValueError(
            f"{source} has no state of torch's random numbers: {error!r}. Save it anew."
        ) from error


def load_random(models: list[Any], state: dict[str, Any]) -> None:
    """Restore the states of torch's generators, as far as there are devices.

    Args:
        models: Not used.
        state: What `random_state` gave.
    """
    torch.set_rng_state(state[_CPU])
    for number, one in enumerate(state[_CUDA]):
        if torch.cuda.is_available() and number < torch.cuda.device_count():
            torch.cuda.set_rng_state(one, number)


@contextmanager
def kept_random(models: list[Any]) -> Iterator[None]:
    """Restore the states of torch's generators if something fails meanwhile.

    Args:
        models: Not used.
    """
    before = random_state(models)
    try:
        yield
    except BaseException:
        load_random(models, before)
        raise


def give(value: Any) -> Block | None:
    """Return a tensor as it is in a file.

    Args:
        value: The tensor, or anything else.

    Returns:
        The tensor's type, shape and bytes; None for anything else.
    """
    if not isinstance(value, torch.Tensor):
        return None
    name = str(value.dtype).removeprefix("torch.")
    if value.is_quantized or value.is_meta or value.layout != torch.strided:
        return Block(f"{name}, {value.layout} on {value.device}", (), b"")
    flat = value.detach().cpu().contiguous().reshape(-1)
    return Block(name, tuple(value.shape), flat.view(torch.uint8).numpy())


def make(block: Block) -> torch.Tensor:
    """Make a tensor.

    Args:
        block: What a file has of it; without bytes for one of zeros that takes no memory.

    Returns:
        The tensor, on the CPU.
    """
    dtype = getattr(torch, block.dtype)
    if block.data is None:
        return torch.zeros((), dtype=dtype).expand(block.shape)
    if not len(block.data):
        return torch.empty(block.shape, dtype=dtype)
    return torch.frombuffer(block.data, dtype=dtype).reshape(block.shape)


def _is_cuda_up() -> bool:
    is_initialized: Any = torch.cuda.is_initialized
    return bool(is_initialized())
