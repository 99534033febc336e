"""Calls of models with named arguments and results, and their layers by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from fastnet.errors import MissingKeyError, nearest_name, shorten
from fastnet.types import Model


class ByName:
    """Calls a model with keyword arguments, or takes values of its result by name, or both.

    Without `arguments` the data is passed on; `arrange` makes one argument of a dict of them.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        title: str,
        arguments: Sequence[str] | None,
        results: Sequence[str] | None,
        arrange: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        self._model = model
        self._title = title
        self._arguments = None if arguments is None else tuple(arguments)
        self._results = None if results is None else tuple(results)
        self._arrange = arrange

    def of(self, model: Callable[..., Any]) -> ByName:
        """Return the same around another model."""
        return ByName(model, self._title, self._arguments, self._results, self._arrange)

    def __call__(self, *data: Any, **settings: Any) -> Any:
        """Run the model; data is one list of values where arguments have names."""
        arguments = self._arguments
        if arguments is None:
            returned = self._model(*data, **settings)
        else:
            named = dict(zip(arguments, data[0], strict=True))
            if self._arrange is None:
                returned = self._model(**named, **settings)
            else:
                returned = self._model(self._arrange(named), **settings)
        if self._results is None:
            return returned
        return [self._value(returned, name) for name in self._results]

    def _value(self, returned: Any, name: str) -> Any:
        if isinstance(returned, Mapping):
            if name in returned:
                return returned[name]
            known = list(returned)
        else:
            known = _fields_of(returned)
            if name in known:
                return getattr(returned, name)
        near = nearest_name(name, known)
        kind = type(returned).__name__
        has = f"which has {known}" if known else "whose values have no names"
        raise MissingKeyError(
            f"{self._title} takes '{name}' of what its model returns, a {kind}, {has}."
            + (f" Did you mean {near!r}?" if near else "")
        )


def names_in(value: Any) -> list[Any]:
    """List the names of the values in a mapping, a dataclass or a named tuple; else none."""
    return list(value) if isinstance(value, Mapping) else _fields_of(value)


def _fields_of(value: Any) -> list[str]:
    if is_dataclass(value):
        return [one.name for one in fields(value)]
    return list(getattr(type(value), "__match_args__", ())) if isinstance(value, tuple) else []


def check_arguments(
    title: str, called: Callable[..., Any], names: Sequence[str], passed_over: Collection[str] = ()
) -> None:
    """Raise a ValueError unless a function takes these keyword arguments and `passed_over`."""
    signature = inspect.signature(called)
    known = list(signature.parameters)
    given = [*names, *(name for name in passed_over if name in known)]
    try:
        signature.bind(**dict.fromkeys(given))
    except TypeError as error:
        unknown = next((name for name in names if name not in known), "")
        near = nearest_name(unknown, known) if unknown else None
        raise ValueError(
            f"{title} gives the arguments {list(names)}, but its model takes {signature}: {error}."
            + (f" Did you mean {near!r}?" if near else "")
        ) from None


def takes_several_arguments(called: Callable[..., Any], passed_over: Collection[str] = ()) -> bool:
    """Return whether a function takes several arguments; one with `*inputs` takes a list."""
    parameters = list(inspect.signature(called).parameters.values())
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return len(parameters) > 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in positional and one.name not in passed_over for one in parameters) > 1


def find_layer(
    layers: Sequence[tuple[str, Any]],
    wanted: str | int,
    model: Model,
    setting: str = "intermediate_layers",
) -> Any:
    """Return a layer by its index, or the last one that has a name."""
    names = [name for name, _ in layers]
    title = f"{setting} asks for the layer {wanted!r} of {type(model).__name__}, which has"
    if isinstance(wanted, int):
        if not -len(layers) <= wanted < len(layers):
            raise IndexError(f"{title} {len(layers)}, nested layers included: {shorten(names)}.")
        return layers[wanted][1]
    if wanted not in names:
        near = nearest_name(wanted, names)
        raise MissingKeyError(
            f"{title} none of this name.{f' Did you mean {near!r}?' if near else ''} Its layers "
            f"are {shorten(names)}."
        )
    return dict(layers)[wanted]
