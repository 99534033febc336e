"""Which framework's functions a value needs, found by its type."""

from __future__ import annotations

from typing import Any

from fastnet.frameworks import FRAMEWORKS, MissingPart, framework_named, part_in
from fastnet.util.lazy import import_late

__all__ = ["implementation", "implementation_of"]

_by_type: dict[type, Any] = {}


def implementation(value: object) -> Any:
    """Find the functions for a tensor.

    Args:
        value: A tensor or an array.

    Returns:
        The package of `fastnet.backend` that speaks the value's framework.

    Raises:
        ValueError: If the value is of no framework that fastnet knows.

    >>> import numpy as np
    >>> implementation(np.ones(2)).__name__
    'fastnet.backend.numpy'
    """
    try:
        return _by_type[type(value)]
    except KeyError:
        return _find(value)


def implementation_of(op: object, value: object, part: str) -> Any:
    """Find something that the framework of a tensor has, and numpy need not have.

    Args:
        op: The op that asks, for error texts.
        value: A tensor.
        part: What to find in the framework's package, as for `part_of`.

    Returns:
        The module, or what is in it.

    Raises:
        TypeError: If the value is an array, and numpy has no such part.
        MissingPart: If its framework has none.
        ValueError: If it is of no framework that fastnet knows.
    """
    name = type(op).__name__
    package = implementation(value).__name__
    try:
        return part_in(package, part, "framework", name)
    except MissingPart:
        if package != framework_named("np").package:
            raise
        raise TypeError(
            f"{name} runs on tensors of torch or TensorFlow, but got an array of type "
            f"{type(value).__name__}. Make a tensor of it first."
        ) from None


def _find(value: object) -> Any:
    for framework in reversed(FRAMEWORKS.values()):
        if framework.has_tensor(value):
            found = import_late(framework.package)
            _by_type[type(value)] = found
            return found
    libraries = [framework.library for framework in FRAMEWORKS.values()]
    raise ValueError(
        f"Unrecognized tensor type {type(value).__name__}: expected a tensor of "
        f"{', '.join(libraries[:-1])} or {libraries[-1]}, but got {_shorten(value)}."
    )


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
