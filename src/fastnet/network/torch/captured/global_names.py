"""The globals that code reads, and whose code it is."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterable, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

__all__ = [
    "ABSENT",
    "Globals",
    "functions_of_torch",
    "is_library",
    "replaced_function_of_torch",
]

ABSENT: Any = object()
"""Stands for what is not there."""

_LIBRARIES = frozenset({"torch", "numpy", "fastnet"})
# which every module of Python has
_NEVER = frozenset({"__builtins__", "__name__", "__file__", "__doc__", "__package__", "__spec__"})
_OF_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL")


class Globals:
    """The globals that code reads, and what it reads of modules among them.

    Args:
        code: The code.
        table: The table of its globals.
        names: The names to read there; None for those that the code has.
    """

    def __init__(
        self, code: CodeType, table: dict[str, Any], names: Sequence[str] | None = None
    ) -> None:
        self._code = code
        self.table = table
        read = _names(code)[0] if names is None else names
        self.names = sorted(name for name in read if name not in _NEVER)
        self.key = (code, id(table)) if names is None else (tuple(self.names), id(table))

    def read(self) -> list[Any]:
        """List their values, and something else for those that are not there."""
        return [self.table.get(name, ABSENT) for name in self.names]

    def inner(self) -> list[Globals]:
        """List what the code reads of modules of the program's own."""
        modules = [one for one in self.read() if isinstance(one, ModuleType)]
        return [
            Globals(self._code, vars(one), [*_names(self._code)[1]])
            for one in modules
            if not is_library(one.__name__)
        ]


@functools.lru_cache(maxsize=4096)
def _names(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """List the globals that code reads, with the functions inside, and the attributes."""
    read, attributes = set[str](), set[str]()
    for one in dis.get_instructions(code):
        if one.opname in _OF_GLOBALS:
            read.add(str(one.argval))
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes.add(str(one.argval))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names = _names(inner)
            read |= names[0]
            attributes |= names[1]
    return frozenset(read), frozenset(attributes)


def functions_of_torch(names: Iterable[str]) -> tuple[str, Any]:
    """Return what compares functions of `torch.nn.functional`, which a program may have replaced.

    Args:
        names: Their names.
    """
    functional = torch.nn.functional
    return "torch.nn.functional", Globals(_NO_CODE, vars(functional), [*names])


_NO_CODE = functions_of_torch.__code__


def replaced_function_of_torch() -> str | None:
    """Name a function of torch that a program has put its own in the place of; None without one.

    torch may call its functions by their names again while they are traced, and would call that
    program's function twice.
    """
    for module in (torch, torch.nn.functional):
        for name, value in vars(module).items():
            if isinstance(value, FunctionType) and not is_library(value.__module__):
                return f"{module.__name__}.{name}"
    return None


@functools.lru_cache(maxsize=4096)
def is_library(module: str | None) -> bool:
    """Return whether a module is torch's, numpy's, fastnet's or Python's own.

    Args:
        module: Its name.
    """
    package = (module or "builtins").partition(".")[0]
    return package in _LIBRARIES or (package != "__main__" and package in sys.stdlib_module_names)
