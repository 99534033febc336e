"""The globals that code reads, and whose code it is."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence, Set
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from fastnet.backend.code_names import names_in
from fastnet.backend.packages import is_installed
from fastnet.backend.readers import ABSENT
from fastnet.network.torch.captured.observing import is_own_file

__all__ = [
    "Globals",
    "attributes_in",
    "functions_of_torch",
    "is_library",
    "replaced_function_of_torch",
]

# what torch writes down of graphs, which calls operations by names of their own
_OF_GRAPHS = "<eval_with_key>"
_OF_MODULES = os.path.dirname(torch.nn.__file__) + os.sep
_LIBRARIES = frozenset({"torch", "numpy", "fastnet"})
# which every module of Python has
_NEVER = frozenset({"__builtins__", "__name__", "__file__", "__doc__", "__package__", "__spec__"})


class Globals:
    """The globals that code reads, and what it reads of modules among them.

    Args:
        code: The code.
        table: The table of its globals.
        names: The names to read there; None for those that the code has.

    Attributes:
        is_library: Whether these are of a module of a library, of which only the names count, and
            not what is behind them.
    """

    def __init__(
        self, code: CodeType, table: dict[str, Any], names: Sequence[str] | None = None
    ) -> None:
        self._code = code
        self._is_of_code = names is None
        self.table = table
        self.is_library = names is not None and is_library(table.get("__name__"))
        read: Iterable[str] = names_in(code).read if names is None else names
        self.names = sorted(name for name in read if name not in _NEVER)
        self.key = code, tuple(self.names), id(table)

    def __bool__(self) -> bool:
        return bool(self.names or (self._is_of_code and names_in(self._code).imports))

    def read(self) -> list[Any]:
        """List their values, and something else for those that are not there."""
        return [self.table.get(name, ABSENT) for name in self.names]

    def inner(self, attributes: Set[str]) -> list[Globals]:
        """List what code reads of modules: those here, and those that the code itself imports.

        Args:
            attributes: The names of all attributes that a program's own code reads, which may be
                given the modules.
        """
        own, found = names_in(self._code), list[Globals]()
        read = _attributes(self._code)
        if self._is_of_code and own.imports:
            found.append(Globals(self._code, sys.modules, [*self._imported(own.imports)]))
        for module in self.read():
            if not isinstance(module, ModuleType):
                continue
            table = vars(module)
            names: Iterable[str]
            if is_library(module.__name__):
                names = table.keys() & read
            elif own.looks_up and not is_installed(getattr(module, "__file__", None) or ""):
                names = {name for name in table if not name.startswith("__")}
            else:
                names = read | (table.keys() & attributes)
            found.append(Globals(self._code, table, [*names]))
        return found

    def _imported(self, names: Iterable[str]) -> Iterator[str]:
        """Go through the modules that may be imported by some names, perhaps relative ones."""
        package = str(self.table.get("__package__") or "")
        while True:
            for name in names:
                full = ".".join(filter(None, (package, name)))
                if full in sys.modules:
                    yield full
            if not package:
                return
            package = package.rpartition(".")[0]


def _attributes(code: CodeType) -> frozenset[str]:
    is_of_graph = code.co_filename.startswith(_OF_GRAPHS)
    return frozenset() if is_of_graph else names_in(code).attributes


def attributes_in(codes: Iterable[CodeType]) -> frozenset[str]:
    """Return the names of all attributes that code reads.

    Args:
        codes: The code.
    """
    return frozenset().union(*map(_attributes, codes))


def functions_of_torch(names: Iterable[str], codes: Iterable[CodeType]) -> list[tuple[str, Any]]:
    """Return what compares functions of torch, which a program may have replaced.

    Args:
        names: The names of those of `torch.nn.functional`.
        codes: The code of torch's that has run.
    """
    functions, every = torch.nn.functional, vars(torch)
    of_c = {name for name, one in every.items() if isinstance(one, BuiltinFunctionType)}
    called = of_c & attributes_in(one for one in codes if one.co_filename.startswith(_OF_MODULES))
    return [
        (functions.__name__, Globals(_NO_CODE, vars(functions), [*names])),
        (torch.__name__, Globals(_NO_CODE, every, [*called])),
    ]


_NO_CODE = functions_of_torch.__code__


def replaced_function_of_torch() -> str | None:
    """Name a function of torch that a program has put its own in the place of; None without one.

    torch may call its functions by their names again while they are traced, and would call that
    program's function twice.
    """
    for module in (torch, torch.nn.functional):
        for name, value in vars(module).items():
            if not isinstance(value, FunctionType):
                continue
            # what wraps another function says that it is of the module of that one
            if not is_library(value.__module__) or is_own_file(value.__code__.co_filename):
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
