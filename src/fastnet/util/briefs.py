"""What an op, a slicer, a scheduler or a network is, in one line."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fastnet.errors import op_name
from fastnet.util.names import MODES

__all__ = ["brief", "brief_value"]

_LONGEST = 80


def brief(item: object, parts: Iterable[str]) -> str:
    """Word the repr of something that is in force in some modes and for some datasets.

    Args:
        item: The item. One whose class has not finished making it has neither modes nor ids.
        parts: What it does, in words; empty ones are left out.

    Returns:
        Its class (and function) and, in brackets, the parts, with the modes and datasets that it is
        limited to.
    """
    told = [part for part in parts if part]
    for attribute in ("mode", "ds_id"):
        names: Collection[str] = getattr(item, attribute, ())
        others = set(MODES) - set(names)
        if attribute == "mode" and len(others) == 1:
            names = [f"!{others.pop()}"]
        if names:
            told.append(f"{attribute}={'|'.join(sorted(names))}")
    return f"{op_name(item)}({', '.join(told)})"


def brief_value(value: object) -> str:
    """Word a value that is a part of something else's repr.

    Args:
        value: The value.

    Returns:
        Its repr, or of one whose repr is long or has several lines, such as an optimizer's, its
        class.
    """
    text = repr(value)
    return text if len(text) <= _LONGEST and "\n" not in text else f"{type(value).__name__}(...)"
