"""What is said of a key that is not there: the one place where tests have it word for word."""

from __future__ import annotations

from collections.abc import Sequence


def reads(key: str, reader: str = "", verb: str = "reads") -> str:
    """Return how the text begins: with the op or slicer, as it is described in errors, if given."""
    return f"{reader}{' ' if reader else ''}{verb} the key '{key}'"


def missing(
    reader: str, key: str, there: Sequence[str], near: str | None = None, verb: str = "reads"
) -> str:
    """Return the text for a key that nothing has written, with the keys that are there."""
    suggestion = f" Did you mean '{near}'?" if near is not None else ""
    return (
        f"{reads(key, reader, verb)}, but there is no such key. Keys there: {list(there)}."
        f"{suggestion} Put the key into the batch, or let an earlier op write it."
    )


def deleted(reader: str, key: str, by: str, verb: str = "reads") -> str:
    """Return the text for a key that an earlier op has deleted."""
    return (
        f"{reads(key, reader, verb)}, which {by} has deleted. Read it before it is deleted, or "
        "keep it."
    )
