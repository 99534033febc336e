"""An extension of griffe: examples in docstrings become blocks of code.

A doctest may stand anywhere in a docstring, but Markdown takes its `>>>` for a quotation.
"""

from __future__ import annotations

from typing import Any

from griffe import Extension, Object


class Doctests(Extension):
    """Puts a fence around each doctest of each docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite an object's docstring, if it has one."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Put fences around the lines from a `>>>` to the next empty line.

    Args:
        text: A docstring.

    Returns:
        The same with fences.
    """
    made: list[str] = []
    indent: str | None = None
    for line in text.rstrip().split("\n"):
        if indent is None and line.lstrip().startswith(">>>"):
            indent = line[: len(line) - len(line.lstrip())]
            made.append(f"{indent}```pycon")
        elif indent is not None and not line.strip():
            made.append(f"{indent}```")
            indent = None
        made.append(line)
    if indent is not None:
        made.append(f"{indent}```")
    return "\n".join(made)
