"""The global, attribute and module names that a code object reads."""

from __future__ import annotations

import dis
import functools
from types import CodeType
from typing import NamedTuple

__all__ = ["LOOKING_UP", "CodeNames", "names_in"]

LOOKING_UP = frozenset({"getattr", "vars", "__dict__", "__getattribute__"})
"""Names with which code can read attributes that it does not name."""

_OF_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL")


class CodeNames(NamedTuple):
    """The names that a code object, and the functions defined in it, read."""

    read: frozenset[str]
    """Names of globals."""
    attributes: frozenset[str]
    """Names of attributes."""
    strings: frozenset[str]
    """String constants that may be names, such as the arguments of `getattr`."""
    imports: frozenset[str]
    """Modules that the code imports."""

    @property
    def looks_up(self) -> bool:
        """Whether the code may read attributes that it does not name."""
        return not LOOKING_UP.isdisjoint(self.read | self.attributes)


@functools.lru_cache(maxsize=4096)
def names_in(code: CodeType) -> CodeNames:
    """List the names that a code object reads."""
    read, attributes, strings, imports = set[str](), set[str](), set[str](), set[str]()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _OF_GLOBALS:
            read.add(str(instruction.argval))
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"):
            attributes.add(str(instruction.argval))
        elif instruction.opname == "IMPORT_NAME":
            imports.add(str(instruction.argval))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names = names_in(inner)
            read |= names.read
            attributes |= names.attributes
            strings |= names.strings
            imports |= names.imports
        elif isinstance(inner, str) and inner.isidentifier():
            strings.add(inner)
    return CodeNames(*map(frozenset, (read, attributes, strings, imports)))
