"""A context manager for where none is needed."""

from __future__ import annotations

__all__ = ["NonContext"]


class NonContext:
    """A context that does nothing, for code that enters one only sometimes.

    >>> with NonContext():
    ...     answer = 42
    >>> answer
    42
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        pass
