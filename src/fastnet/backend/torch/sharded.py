"""Models that FSDP2 has sharded: gradients of their own process, and gradients as values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from fastnet.backend.torch._internals import reduces_in_another_type
from fastnet.backend.torch.engines import is_sharded, sharded_modules, wrapper_of

__all__ = ["accumulates_apart", "begin_anew", "gather_no_more", "not_communicating"]


def gather_no_more(model: torch.nn.Module) -> None:
    """Put the parts of parameters that the process keeps back into their places.

    After a forward pass the outermost module, and others if they were told to, still have the
    whole parameters, which are other objects than those that an optimizer updates.

    Args:
        model: The model; nothing is done to one that is not sharded.
    """
    for module in sharded_modules(model):
        module.reshard()


def accumulates_apart(model: torch.nn.Module) -> bool:
    """Return whether gradients that were not communicated yet can be read off the parameters.

    Args:
        model: A model that is sharded.

    Returns:
        False if gradients are communicated in a type of their own, for which the engine keeps them
        elsewhere.
    """
    return not any(reduces_in_another_type(module) for module in sharded_modules(model))


def begin_anew(model: torch.nn.Module) -> None:
    """Let the engine forget a pass that was broken off.

    Args:
        model: A model that is sharded.
    """
    root: Any = wrapper_of(model)
    if hasattr(root, "reset_iter_state"):
        # a part of another sharded model is not the one to ask
        with suppress(RuntimeError):
            root.reset_iter_state()


@contextmanager
def not_communicating(models: Iterable[torch.nn.Module]) -> Iterator[None]:
    """Let a backward pass leave each process's own gradients, of whole parameters.

    They are on what `model.parameters()` gives inside of this, in the order in which it gives the
    sharded ones; they are gone afterwards.

    Args:
        models: The models; those that are not sharded are left alone.
    """
    sharded = [model for model in models if any(True for _ in sharded_modules(model))]
    modules = [module for model in sharded for module in sharded_modules(model)]
    try:
        for module in modules:
            module.set_requires_gradient_sync(False, recurse=False)
            module.set_reshard_after_backward(False, recurse=False)
        yield
    finally:
        for model in sharded:
            for parameter in model.parameters():
                if not is_sharded(parameter):
                    parameter.grad = None
        for module in modules:
            module.reshard()
            module.set_requires_gradient_sync(True, recurse=False)
            module.set_reshard_after_backward(True, recurse=False)
