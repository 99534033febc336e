"""One-line descriptions of ops, slicers, schedulers and of the modes and datasets they run in."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fastnet.errors import op_name
from fastnet.util.names import MODES

_MAX_LENGTH = 80


def format_repr(item: object, parts: Iterable[str]) -> str:
    """Return the repr of an op or slicer: its name, then the parts that are not empty.

    The modes and dataset ids follow the parts. An item whose `__init__` has not finished may lack
    them.
    """
    shown_parts = [part for part in parts if part]
    modes: Collection[str] = getattr(item, "mode", ())
    excluded = set(MODES) - set(modes)
    if len(excluded) == 1:
        modes = [f"!{excluded.pop()}"]
    for attribute, names in (("mode", modes), ("ds_id", getattr(item, "ds_id", ()))):
        if names:
            shown_parts.append(f"{attribute}={'|'.join(sorted(names))}")
    return f"{op_name(item)}({', '.join(shown_parts)})"


def format_value(value: object) -> str:
    """Return the repr of a value, or only its class where the repr is long or has several lines."""
    text = repr(value)
    is_short = len(text) <= _MAX_LENGTH and "\n" not in text
    return text if is_short else f"{type(value).__name__}(...)"


def format_modes(modes: Collection[str] | str) -> str:
    """Describe the modes that an op is limited to.

    >>> format_modes({"test", "eval"})
    "runs in mode 'eval' or 'test' only"
    """
    names = [modes] if isinstance(modes, str) else sorted(modes, key=_mode_order)
    return f"runs in mode {_join_or(names)} only"


def format_ds_ids(ds_ids: Collection[str] | str) -> str:
    """Describe the datasets that an op is limited to.

    >>> format_ds_ids({"a", "b"}), format_ds_ids("!a")
    ("runs for ds_id 'a' or 'b' only", "does not run for ds_id 'a'")
    """
    names = [ds_ids] if isinstance(ds_ids, str) else sorted(ds_ids)
    excluded = [name[1:] for name in names if name.startswith("!")]
    if len(excluded) == len(names):
        return f"does not run for ds_id {_join_or(excluded)}"
    return f"runs for ds_id {_join_or(names)} only"


def _mode_order(mode: str) -> tuple[int, str]:
    return MODES.index(mode) if mode in MODES else len(MODES), mode


def _join_or(names: Iterable[str]) -> str:
    return " or ".join(map(repr, names))
