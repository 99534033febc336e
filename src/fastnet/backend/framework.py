"""Which framework a model belongs to, found out without importing any."""

from __future__ import annotations

from fastnet.frameworks import FRAMEWORKS

__all__ = ["framework_of"]


def framework_of(model: object) -> str | None:
    """Return a model's framework.

    Args:
        model: Anything.

    Returns:
        The name of the framework, such as "torch" or "tf"; None for something that is no model of
        any.

    >>> framework_of("a string") is None
    True
    """
    for framework in reversed(FRAMEWORKS.values()):
        if framework.has_model(model):
            return framework.name
    return None
