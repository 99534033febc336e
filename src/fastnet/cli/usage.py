"""What a user got wrong on the command line."""

from __future__ import annotations

__all__ = ["UsageError"]


class UsageError(Exception):
    """An argument that names what is not there, or that asks for what cannot be done.

    Its text says what, where, and what to do; it is all that the user is shown, for a traceback
    would lead into fastnet's own code.
    """
