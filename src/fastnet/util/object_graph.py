"""The objects that containers and functions hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from types import BuiltinMethodType, CellType, FunctionType, MethodType
from typing import Any
from weakref import ProxyTypes


def iter_contents(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the values that a container or a function holds, with names; else the value itself.

    Containers and functions inside of the value are entered to the given depth.
    """
    if type(value) in ProxyTypes:
        return  # The object that it refers to may have been deleted.
    if "__wrapped__" in instance_dict(value):
        # Decorators such as torch.no_grad, tf.function and functools.cache refer to the function.
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
        parts = [(f"{name}.{key}", item) for key, item in _closure_and_defaults(value)]
    else:
        yield name, value
    if depth:
        for part_name, item in parts:
            yield from iter_contents(part_name, item, depth - 1)


def _closure_and_defaults(function: FunctionType) -> list[tuple[str, Any]]:
    """List the variables of a function's closure, and the defaults of its arguments, by name."""
    code = function.__code__
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    # The cell of a variable that is not assigned yet is empty.
    variables = [(name, cell.cell_contents) for name, cell in cells if cell != CellType()]
    positional = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    variables += zip(positional[len(positional) - len(defaults) :], defaults, strict=True)
    variables += (function.__kwdefaults__ or {}).items()
    return variables


def instance_dict(value: Any) -> dict[str, Any]:
    """Return the `__dict__` of an object; an empty dict if it has none."""
    attributes: dict[str, Any] = getattr(value, "__dict__", {})
    return attributes
