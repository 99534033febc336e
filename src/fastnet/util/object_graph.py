"""The objects that containers and functions hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from types import BuiltinMethodType, CellType, FunctionType, MethodType
from typing import Any
from weakref import ProxyTypes


def iter_contents(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield what a container, or a function with its variables, holds; otherwise the value."""
    if type(value) in ProxyTypes:
        return  # The object that it refers to may have been deleted.
    if "__wrapped__" in instance_dict(value):
        # The function in a decorated one, as by torch.no_grad, tf.function or functools.cache.
        yield from iter_contents(name, value.__wrapped__, depth)
    parts: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        parts = ((f"{name}.{key}", item) for key, item in value.items())
    elif isinstance(value, (list, tuple, deque)):
        parts = ((f"{name}[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, partial):
        parts = [(name, value.func), (f"{name}.args", value.args), (name, value.keywords)]
    elif isinstance(value, (MethodType, BuiltinMethodType)):
        parts = [(name, value.__self__)]
    elif isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        # The cell of a variable that is not assigned yet is empty.
        filled = [(key, cell) for key, cell in cells if cell != CellType()]
        variables = [(key, cell.cell_contents) for key, cell in filled]
        positional = value.__code__.co_varnames[: value.__code__.co_argcount]
        defaults = value.__defaults__ or ()
        variables += zip(positional[len(positional) - len(defaults) :], defaults, strict=True)
        variables += (value.__kwdefaults__ or {}).items()
        parts = [(f"{name}.{key}", item) for key, item in variables]
    else:
        yield name, value
    if depth:
        for inner, item in parts:
            yield from iter_contents(inner, item, depth - 1)


def instance_dict(value: Any) -> dict[str, Any]:
    """Return the `__dict__` of an object; an empty dict if it has none."""
    attributes: dict[str, Any] = getattr(value, "__dict__", {})
    return attributes
