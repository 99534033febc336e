"""Calls of models with named arguments and results, and their layers by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from fastnet.errors import MissingKeyError, nearest_name, shorten
from fastnet.types import Model


class ByName:
    """Calls a model with keyword arguments, or selects values of its result by name, or both.

    Without `arguments` the data is passed on as it is. With `arrange`, the model gets a single
    argument, which `arrange` makes of the dict of named arguments.
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
        """Return a copy that calls another model."""
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
        suggestion = nearest_name(name, known)
        class_name = type(returned).__name__
        content = f"which has {known}" if known else "whose values have no names"
        raise MissingKeyError(
            f"{self._title} selects '{name}' from the result of its model, a {class_name}, "
            f"{content}." + (f" Did you mean {suggestion!r}?" if suggestion else "")
        )


def names_in(value: Any) -> list[Any]:
    """List the names of the values in a mapping, a dataclass or a named tuple; else none."""
    return list(value) if isinstance(value, Mapping) else _fields_of(value)


def _fields_of(value: Any) -> list[str]:
    if is_dataclass(value):
        return [field.name for field in fields(value)]
    if isinstance(value, tuple):
        return list(getattr(type(value), "__match_args__", ()))
    return []


def check_arguments(
    title: str, called: Callable[..., Any], names: Sequence[str], passed_over: Collection[str] = ()
) -> None:
    """Raise a ValueError unless a function can be called with these keyword arguments.

    Arguments of `passed_over` are passed by others, if the function has them.
    """
    signature = inspect.signature(called)
    parameters = list(signature.parameters)
    passed = [*names, *(name for name in passed_over if name in parameters)]
    try:
        signature.bind(**dict.fromkeys(passed))
    except TypeError as error:
        unknown = next((name for name in names if name not in parameters), "")
        suggestion = nearest_name(unknown, parameters) if unknown else None
        raise ValueError(
            f"{title} passes the arguments {list(names)}, but its model takes {signature}: {error}."
            + (f" Did you mean {suggestion!r}?" if suggestion else "")
        ) from None


def takes_several_arguments(called: Callable[..., Any], passed_over: Collection[str] = ()) -> bool:
    """Return whether a function takes several arguments; one with `*inputs` takes a list."""
    parameters = list(inspect.signature(called).parameters.values())
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return len(parameters) > 1
    positional_kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in positional_kinds and parameter.name not in passed_over
    ]
    return len(positional) > 1


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
        suggestion = nearest_name(wanted, names)
        question = f" Did you mean {suggestion!r}?" if suggestion else ""
        raise MissingKeyError(
            f"{title} none of this name.{question} Its layers are {shorten(names)}."
        )
    return dict(layers)[wanted]
