"""The texts of missing-key errors, so that only this module depends on their wording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def reads(key: str, reader: str = "", verb: str = "reads") -> str:
    """Return the beginning of the text: the op or slicer as errors describe it, and the key."""
    return f"{reader}{' ' if reader else ''}{verb} the key '{key}'"


def missing(
    reader: str,
    key: str,
    there: Sequence[str],
    near: str | None = None,
    verb: str = "reads",
    written: Mapping[str, str] | None = None,
) -> str:
    """Return the text for a key that does not exist; `written` maps other keys to their ops."""
    sources = f"{list(there)}"
    if written:
        sources += f" in the batch, {sorted(written)} from earlier ops"
    text = f"{reads(key, reader, verb)}, but there is no such key. Available keys: {sources}."
    if near is not None:
        writer = f", which {written[near]} writes" if written and near in written else ""
        text += f" Did you mean '{near}'{writer}?"
    return f"{text} Put the key into the batch, or let an earlier op write it."


def deleted(reader: str, key: str, by: str, verb: str = "reads") -> str:
    """Return the text for a key that an earlier op has deleted."""
    return (
        f"{reads(key, reader, verb)}, which {by} has deleted. Read it before it is deleted, or "
        "keep it."
    )
