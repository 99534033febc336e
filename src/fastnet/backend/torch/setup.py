"""Torch models made ready for a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from fastnet.backend.facts import reserve
from fastnet.backend.precision import Precision, read_precision
from fastnet.backend.torch.engines import engine_of
from fastnet.backend.torch.spreading import Spread, note, spread
from fastnet.backend.torch.weights import load_weights
from fastnet.errors import UnknownNameError, WrongOptimizerError, shown

__all__ = ["Spread", "load_weights", "make_optimizer", "note", "reserve_names", "spread"]

_Make = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]

# the defaults are FastEstimator's: torch's own, and a rate for SGD, which long had none
_BY_NAME: dict[str, _Make] = {
    "adadelta": lambda parameters: torch.optim.Adadelta(parameters),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters),
    "adam": lambda parameters: torch.optim.Adam(parameters),
    "adamax": lambda parameters: torch.optim.Adamax(parameters),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
}


def reserve_names(model: torch.nn.Module, source: Any) -> None:
    """Find out which names a model uses itself.

    Args:
        model: The model.
        source: What its optimizer is made of; not used: other frameworks need it.
    """
    reserve(model)


def make_optimizer(
    source: Any, model: torch.nn.Module, name: str, mixed_precision: Precision
) -> torch.optim.Optimizer:
    """Make a model's optimizer.

    Args:
        source: The name of one, or a function that takes the model's parameters.
        model: The model.
        name: The model's name, for error texts.
        mixed_precision: What the model computes in. For float16 its loss is scaled.

    Returns:
        The optimizer, with a `scaler` that is None where nothing is scaled.

    Raises:
        UnknownNameError: If there is no optimizer of this name.
        WrongOptimizerError: If there is no function, or it fails or returns something else; or if
            the optimizer was made before the model was sharded.
    """
    make = source
    if isinstance(source, str):
        if source not in _BY_NAME:
            raise UnknownNameError(
                f"The optimizer of model '{name}' is called {shown(source)}, but the names are "
                f"{sorted(_BY_NAME)}. For any other pass a function, such as "
                "`lambda params: torch.optim.AdamW(params, lr=1e-3)`."
            )
        make = _BY_NAME[source]
    if not callable(make):
        raise WrongOptimizerError(
            f"The optimizer_fn of model '{name}' is of type {type(make).__name__}. Pass a name, a "
            "function of the model's parameters, a scheduler of these, or None."
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
    _require_sharded(optimizer, model, name)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    precision = read_precision(mixed_precision)
    # bfloat16 has the range of float32
    scaled = precision == "float16" or (precision is True and device == "cuda")
    optimizer.scaler = torch.amp.GradScaler(device) if scaled else None  # type: ignore[attr-defined]
    return optimizer


def _require_sharded(optimizer: torch.optim.Optimizer, model: torch.nn.Module, name: str) -> None:
    if engine_of(model) != "fsdp":
        return
    own = set(map(id, model.parameters()))
    if not any(id(one) in own for group in optimizer.param_groups for one in group["params"]):
        raise WrongOptimizerError(
            f"The optimizer_fn of model '{name}' returned {type(optimizer).__name__} of parameters "
            "that are none of the sharded model's: it was made before parallel='fsdp' has put "
            "others in their places. Pass a function that makes the optimizer of the parameters "
            "that it is given."
        )
