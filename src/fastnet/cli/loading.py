"""Finds what the command line names in the user's own modules."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from fastnet.cli.usage import UsageError
from fastnet.errors import nearest_name
from fastnet.network import BaseNetwork

__all__ = ["call_without_arguments", "find", "load_network", "needs_no_arguments"]


def load_network(place: str) -> BaseNetwork:
    """Find a network, or make one.

    Args:
        place: "MODULE:NETWORK", where NETWORK is a network, or a function that makes one.

    Returns:
        The network.

    Raises:
        UsageError: If there is none.
    """
    value = find(place, "NETWORK", _may_give_network)
    if not isinstance(value, BaseNetwork) and callable(value):
        value = call_without_arguments(value, place)
    if not isinstance(value, BaseNetwork):
        raise UsageError(
            f"{place!r} is of type {type(value).__name__}. It must be a fastnet Network, or a "
            "function without arguments that makes one."
        )
    return value


def find(place: str, what: str, fits: Callable[[Any], bool]) -> Any:
    """Import a module, and take a value from it.

    Args:
        place: "MODULE:NAME", where MODULE is a module's name or a file.
        what: The word for NAME in errors.
        fits: Tells of a value of the module whether it may be one that is looked for; where there
            is none of the name, such ones are offered.

    Returns:
        The value.

    Raises:
        UsageError: If there is no such module or name.
    """
    where, colon, name = place.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(
            f"{place!r} does not say MODULE:{what}: the name of a module or a file, a colon, and a "
            "name in it, such as networks.py:make_network."
        )
    module = _load_file(where) if where.endswith(".py") else _import(where)
    if hasattr(module, name):
        return getattr(module, name)
    names = [
        other for other, value in vars(module).items() if not other.startswith("_") and fits(value)
    ]
    near = nearest_name(name, names)
    if near:
        hint = f"Did you mean {where}:{near}?"
    elif names:
        hint = f"It has: {', '.join(sorted(names))}."
    else:
        hint = "It has nothing that could be named here."
    raise UsageError(f"{where} has no {name!r}. {hint}")


def needs_no_arguments(value: Any) -> bool:
    """Tell whether a value is a function that can be called without arguments; no class is meant.

    Args:
        value: The value.
    """
    if not callable(value) or isinstance(value, type):
        return False
    try:
        inspect.signature(value).bind()
    except (TypeError, ValueError):
        return False
    return True


def _may_give_network(value: Any) -> bool:
    return isinstance(value, BaseNetwork) or needs_no_arguments(value)


def call_without_arguments(function: Any, place: str) -> Any:
    """Call a function that needs no arguments.

    Args:
        function: The function.
        place: Where it is, for errors.

    Returns:
        What it returns.

    Raises:
        UsageError: If it does need arguments.
    """
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise UsageError(
            f"{place!r} cannot be called without arguments: {error}. Write a function that gives "
            "it what it needs, and name that."
        ) from None
    except ValueError:
        pass  # a builtin that does not tell what it takes
    return function()


def _import(name: str) -> ModuleType:
    _look_in(os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # what the module itself imports may be missing too, and that is another matter
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise UsageError(_no_module(name, error.name)) from None


def _no_module(name: str, missing: str) -> str:
    parent, _, last = missing.rpartition(".")
    if parent:
        where = f"in the package {parent!r}"
        paths = getattr(sys.modules[parent], "__path__", [])
    else:
        where = f"in {os.getcwd()} or among what is installed"
        paths = [os.getcwd()]
    near = nearest_name(last, [module.name for module in pkgutil.iter_modules(paths)])
    return (
        f"there is no module {name!r}: {last!r} is not found {where}."
        + (f" Did you mean {near!r}?" if near else "")
        + " Run this from the folder that the module lies in, or name its file."
    )


def _load_file(path: str) -> ModuleType:
    if not os.path.isfile(path):
        folder, wanted = os.path.split(path)
        near = nearest_name(wanted, [name for name in _names_in(folder) if name.endswith(".py")])
        meant = "" if near is None else f" Did you mean {os.path.join(folder, near)}?"
        raise UsageError(f"there is no file {path!r}.{meant}")
    path = os.path.realpath(path)
    _look_in(os.path.dirname(path))  # for what it imports from beside it
    # what is pickled, or read by AutoGraph, is looked up by the name of its module
    name = os.path.splitext(os.path.basename(path))[0]
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) != path:
        name = path  # the file's own is another module's
    return sys.modules.get(name) or _run_file(name, path)


def _run_file(name: str, path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # every .py file has one
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _look_in(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _names_in(folder: str) -> list[str]:
    return os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
