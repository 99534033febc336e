"""The names that code reads."""

from __future__ import annotations

import dis
import functools
from types import CodeType
from typing import NamedTuple

__all__ = ["CodeNames", "names_in"]

_OF_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL")


class CodeNames(NamedTuple):
    """The names that code reads, with the functions inside of it.

    Attributes:
        read: Those of globals.
        attributes: Those of attributes.
        strings: Those that may be names: its strings, such as `getattr` takes.
    """

    read: frozenset[str]
    attributes: frozenset[str]
    strings: frozenset[str]


@functools.lru_cache(maxsize=4096)
def names_in(code: CodeType) -> CodeNames:
    """List the names that code reads.

    Args:
        code: The code.
    """
    read, attributes, strings = set[str](), set[str](), set[str]()
    for one in dis.get_instructions(code):
        if one.opname in _OF_GLOBALS:
            read.add(str(one.argval))
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            attributes.add(str(one.argval))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names = names_in(inner)
            read |= names.read
            attributes |= names.attributes
            strings |= names.strings
        elif isinstance(inner, str) and inner.isidentifier():
            strings.add(inner)
    return CodeNames(frozenset(read), frozenset(attributes), frozenset(strings))
