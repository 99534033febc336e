"""Prepares torch models and makes their optimizers for `fastnet.build`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch.nn import Module

from fastnet.backend.model_metadata import foreign_optimizer, other_owner
from fastnet.backend.optimizer_fn import call_optimizer_fn
from fastnet.backend.precision import Precision, read_precision
from fastnet.backend.torch.parameters import optimizer_parameters, trainable_parameters
from fastnet.backend.torch.wrappers import parallel_type, reshard
from fastnet.errors import WrongOptimizerError

# Learning rates that FastEstimator sets in place of torch's defaults.
_RATES = {"sgd": 0.01}


@cache
def _optimizers_by_name() -> dict[str, Callable[..., torch.optim.Optimizer]]:
    """Return the optimizers of torch by their lower-case names."""
    optimizers: dict[str, Callable[..., torch.optim.Optimizer]] = {
        name.lower(): value
        for name, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer)
    }
    del optimizers["optimizer"]
    for name, rate in _RATES.items():
        optimizers[name] = partial(optimizers[name], lr=rate)
    return optimizers


def require_values(model: Module, name: str) -> None:
    """Raise an error if parameters are on the device "meta", which has no values."""
    for path, parameter in model.named_parameters():
        if parameter.is_meta and not hasattr(parameter, "placements"):  # sharded by FSDP2
            raise ValueError(
                f"Parameter '{path}' of model '{name}' has no values: its device is \"meta\". "
                'Make the model outside of `torch.device("meta")`, or call '
                "`model.to_empty(device=...)` and initialize its parameters before fastnet.build."
            )


def make_optimizer(
    source: Any, model: Module, name: str, mixed_precision: Precision
) -> torch.optim.Optimizer:
    """Make an optimizer by name or function. Its `scaler` is None unless losses are scaled."""
    optimizer: torch.optim.Optimizer = call_optimizer_fn(
        source, model, name, _optimizers_by_name, model.parameters()
    )
    check_owner(optimizer, model, name, must_own=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    precision = read_precision(mixed_precision)
    # bfloat16 needs no scaling: it has the range of float32.
    scaled = precision == "float16" or (precision is True and device == "cuda")
    optimizer.scaler = torch.amp.GradScaler(device) if scaled else None  # type: ignore[attr-defined]
    return optimizer


def check_owner(optimizer: Any, model: Module, name: str, *, must_own: bool = False) -> None:
    """Raise an error if an optimizer updates another model's parameters, and none of this one.

    For a new optimizer, `must_own` also refuses parameters that belong to no known model. Later the
    model may have replaced its parameters, as `module.double()` can.
    """
    reshard(model)
    updated = set(map(id, optimizer_parameters(optimizer)))
    trainable = trainable_parameters(model)
    if not trainable or any(id(parameter) in updated for parameter in trainable):
        return
    if must_own and parallel_type(model) == "fsdp":
        raise WrongOptimizerError(
            f"The optimizer of model '{name}', {type(optimizer).__name__}, updates no parameter of "
            "the sharded model: it was made before parallel='fsdp' replaced the parameters. Pass "
            "an optimizer_fn that makes the optimizer from the parameters that it is given."
        )

    def is_owner(other: Any) -> bool:
        is_torch = isinstance(other, Module)
        return is_torch and any(id(parameter) in updated for parameter in other.parameters())

    owner = other_owner(model, is_owner)
    if owner is not None or must_own:
        raise foreign_optimizer(optimizer, model, name, owner)
