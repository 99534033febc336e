"""Calls of models with named arguments and results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from fastnet.errors import MissingKeyError, nearest_name


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
    parameters = inspect.signature(called).parameters
    where = getattr(called, "__qualname__", type(called).__name__)
    kinds = inspect.Parameter
    by_name = [
        name
        for name, one in parameters.items()
        if one.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    ]
    takes_any = any(one.kind is kinds.VAR_KEYWORD for one in parameters.values())
    for name in names:
        if name not in by_name and not takes_any:
            near = nearest_name(name, by_name)
            raise ValueError(
                f"{title} gives the argument '{name}', which {where} does not take."
                f"{f' Did you mean {near!r}?' if near else ''} It takes {by_name}."
            )
    for name in by_name:
        needed = parameters[name].default is kinds.empty
        if needed and name not in names and name not in passed_over:
            raise ValueError(
                f"{title} gives {list(names)}, but {where} needs '{name}', too. Add it to inputs."
            )
