"""The globals that code reads, and whose code it is."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from fastnet.util.code_names import names_in

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
        read = names_in(code).read if names is None else names
        self.names = sorted(name for name in read if name not in _NEVER)
        self.key = (code, id(table)) if names is None else (tuple(self.names), id(table))

    def read(self) -> list[Any]:
        """List their values, and something else for those that are not there."""
        return [self.table.get(name, ABSENT) for name in self.names]

    def inner(self) -> list[Globals]:
        """List what the code reads of modules of the program's own."""
        modules = [one for one in self.read() if isinstance(one, ModuleType)]
        return [
            Globals(self._code, vars(one), [*names_in(self._code).attributes])
            for one in modules
            if not is_library(one.__name__)
        ]


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
