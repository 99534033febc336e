"""The names that code reads."""

from __future__ import annotations

import dis
import functools
from types import CodeType
from typing import NamedTuple

__all__ = ["LOOKING_UP", "CodeNames", "names_in"]

LOOKING_UP = frozenset({"getattr", "vars", "__dict__", "__getattribute__"})
"""By which code reads attributes whose names are not in it."""

_OF_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL")


class CodeNames(NamedTuple):
    """The names that code reads, with the functions inside of it.

    Attributes:
        read: Those of globals.
        attributes: Those of attributes.
        strings: Those that may be names: its strings, such as `getattr` takes.
        imports: Those of modules that it imports itself.
    """

    read: frozenset[str]
    attributes: frozenset[str]
    strings: frozenset[str]
    imports: frozenset[str]

    @property
    def looks_up(self) -> bool:
        """Whether it may read attributes by other names."""
        return not LOOKING_UP.isdisjoint(self.read | self.attributes)


@functools.lru_cache(maxsize=4096)
def names_in(code: CodeType) -> CodeNames:
    """List the names that code reads.

    Args:
        code: The code.
    """
    read, attributes, strings, imports = set[str](), set[str](), set[str](), set[str]()
    for one in dis.get_instructions(code):
        if one.opname in _OF_GLOBALS:
            read.add(str(one.argval))
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"):
            attributes.add(str(one.argval))
        elif one.opname == "IMPORT_NAME":
            imports.add(str(one.argval))
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
