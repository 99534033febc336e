"""Optimizers by name or function, for `fastnet.build`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastnet.errors import UnknownNameError, WrongOptimizerError, nearest_name, shorten


def call_optimizer_fn(
    source: Any,
    name: str,
    by_name: Callable[[], Mapping[str, Any]],
    arguments: tuple[Any, ...],
    attribute: str,
    example: str,
) -> Any:
    """Call the `optimizer_fn` of the model called `name`, and check that it returns an optimizer.

    `by_name` returns functions by lower-case names, `attribute` is what all optimizers of the
    framework have, and `example` is a function in an error's advice.
    """
    make = source
    if isinstance(source, str):
        names = by_name()
        make = names.get(source.lower())
        if make is None:
            near = nearest_name(source.lower(), names)
            raise UnknownNameError(
                f"The optimizer of model '{name}' is called {shorten(source)}, but the names are "
                f"{sorted(names)}.{f' Did you mean {near!r}?' if near else ''} For any other pass "
                f"a function, such as `{example}`."
            )
    if not callable(make):
        raise WrongOptimizerError(
            f"The optimizer_fn of model '{name}' is of type {type(make).__name__}. Pass a name; a "
            f"function, such as `{example}`; a scheduler of these; or None."
        )
    try:
        optimizer = make(*arguments)
    except Exception as error:
        raise WrongOptimizerError(
            f"The optimizer_fn of model '{name}' failed: {error!r}. Pass a name, or a function "
            f"with the arguments of `{example}`."
        ) from error
    if not hasattr(optimizer, attribute):
        raise WrongOptimizerError(
            f"The optimizer_fn of model '{name}' returned {type(optimizer).__name__}, which is not "
            f"an optimizer of the model's framework. Return one, as in `{example}`."
        )
    return optimizer
