"""Optimizers by name or function, for `fastnet.build`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastnet.backend.dispatch import framework_of
from fastnet.backend.model_metadata import OPTIMIZER_KINDS
from fastnet.errors import UnknownNameError, WrongOptimizerError, nearest_name, shorten
from fastnet.types import Model


def call_optimizer_fn(
    source: Any, model: Model, name: str, by_name: Callable[[], Mapping[str, Any]], *arguments: Any
) -> Any:
    """Call the `optimizer_fn` of a model, and check that it returns an optimizer.

    `name` is the model's name for errors; `by_name` returns functions by lower-case names, for an
    `optimizer_fn` that is a name; `arguments` are those of the function.
    """
    kind = OPTIMIZER_KINDS[str(framework_of(model))]
    make = source
    if isinstance(source, str):
        names = by_name()
        make = names.get(source.lower())
        if make is None:
            suggestion = nearest_name(source.lower(), names)
            question = f" Did you mean {suggestion!r}?" if suggestion else ""
            raise UnknownNameError(
                f"The optimizer of model '{name}' is called {shorten(source)}, but the names are "
                f"{sorted(names)}.{question} For any other optimizer pass a function, such as "
                f"`{kind.example}`."
            )
    if not callable(make):
        raise WrongOptimizerError(
            f"The optimizer_fn of model '{name}' is of type {type(make).__name__}. Pass a name; a "
            f"function, such as `{kind.example}`; a scheduler of these; or None."
        )
    try:
        optimizer = make(*arguments)
    except Exception as error:
        raise WrongOptimizerError(
            f"The optimizer_fn of model '{name}' failed: {error!r}. Pass a name, or a function "
            f"with the arguments of `{kind.example}`."
        ) from error
    if not hasattr(optimizer, kind.attribute):
        raise WrongOptimizerError(
            f"The optimizer_fn of model '{name}' returned {type(optimizer).__name__}, which is not "
            f"an optimizer of the model's framework. Return one, as in `{kind.example}`."
        )
    return optimizer
