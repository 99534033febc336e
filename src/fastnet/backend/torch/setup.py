"""Prepares torch models and makes their optimizers for `fastnet.build`."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch

from fastnet.backend.model_metadata import foreign_optimizer, other_owner, reserve
from fastnet.backend.precision import Precision, read_precision
from fastnet.backend.torch.parallelize import Placement, note_placement, parallelize
from fastnet.backend.torch.parameters import parameters_in, trainable
from fastnet.backend.torch.wrappers import parallel_type, reshard
from fastnet.errors import UnknownNameError, WrongOptimizerError, nearest_name, shorten

__all__ = [
    "Placement",
    "check_owner",
    "make_optimizer",
    "note_placement",
    "parallelize",
    "reserve_names",
]

# Learning rates that FastEstimator sets in place of torch's defaults.
_RATES = {"sgd": 0.01}


@cache
def _by_name() -> dict[str, type[torch.optim.Optimizer]]:
    """Return the optimizers of torch by their lower-case names."""
    found = {
        name.lower(): one
        for name, one in vars(torch.optim).items()
        if isinstance(one, type) and issubclass(one, torch.optim.Optimizer)
    }
    del found["optimizer"]
    return found


def reserve_names(model: torch.nn.Module, source: Any) -> None:
    """Record which attribute names a model uses itself. `source` is for TensorFlow."""
    reserve(model)


def make_optimizer(
    source: Any, model: torch.nn.Module, name: str, mixed_precision: Precision
) -> torch.optim.Optimizer:
    """Make an optimizer by name or function. Its `scaler` is None unless losses are scaled."""
    make = source
    if isinstance(source, str):
        known = source.lower()
        if known not in _by_name():
            near = nearest_name(known, _by_name())
            raise UnknownNameError(
                f"The optimizer of model '{name}' is called {shorten(source)}, but the names are "
                f"{sorted(_by_name())}.{f' Did you mean {near!r}?' if near else ''} For any other "
                "pass a function, such as `lambda params: torch.optim.AdamW(params, lr=1e-3)`."
            )
        rate: dict[str, Any] = {"lr": _RATES[known]} if known in _RATES else {}
        make = partial(_by_name()[known], **rate)
    if not callable(make):
        raise WrongOptimizerError(
            f"The optimizer_fn of model '{name}' is of type {type(make).__name__}. Pass a name; a "
            "function of the model's parameters, such as "
            "`lambda params: torch.optim.Adam(params, lr=1e-3)`; a scheduler of these; or None."
        )
    try:
        optimizer = make(model.parameters())
    except Exception as error:
        raise WrongOptimizerError(
            f"The optimizer_fn of model '{name}' failed on the model's parameters: {error!r}. For "
            "a torch model it takes one argument, the parameters, and returns a torch optimizer."
        ) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise WrongOptimizerError(
            f"The optimizer_fn of model '{name}' returned {type(optimizer).__name__}, not a torch "
            "optimizer."
        )
    check_owner(optimizer, model, name, must_own=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    precision = read_precision(mixed_precision)
    # bfloat16 needs no scaling: it has the range of float32.
    scaled = precision == "float16" or (precision is True and device == "cuda")
    optimizer.scaler = torch.amp.GradScaler(device) if scaled else None  # type: ignore[attr-defined]
    return optimizer


def check_owner(
    optimizer: Any, model: torch.nn.Module, name: str, *, must_own: bool = False
) -> None:
    """Raise an error if an optimizer updates another model's parameters, and none of this one.

    Args:
        optimizer: The optimizer. One optimizer of two models updates both.
        model: The model.
        name: The name of the model.
        must_own: Whether parameters of no model are an error too, as of a new optimizer. Later the
            model may have replaced its parameters, as `module.double()` can.
    """
    reshard(model)
    updated = set(map(id, parameters_in(optimizer)))
    own = trainable(model)
    if not own or any(id(one) in updated for one in own):
        return
    if must_own and parallel_type(model) == "fsdp":
        raise WrongOptimizerError(
            f"Model '{name}' has the optimizer {type(optimizer).__name__} of parameters that are "
            "none of the sharded model's: it was made before parallel='fsdp' has put others in "
            "their places. Pass an optimizer_fn that makes the optimizer of the parameters that it "
            "is given."
        )

    def is_owner(other: Any) -> bool:
        is_torch = isinstance(other, torch.nn.Module)
        return is_torch and any(id(one) in updated for one in other.parameters())

    owner = other_owner(model, is_owner)
    if owner is not None or must_own:
        example = "lambda params: torch.optim.Adam(params, lr=1e-3)"
        raise foreign_optimizer(optimizer, name, owner, example)
