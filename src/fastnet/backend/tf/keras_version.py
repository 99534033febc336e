"""Which Keras a model or an optimizer is of: 2 or 3, of whatever package."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["is_keras3", "keras_of"]

_PACKAGES = ("keras", "tf_keras")


def keras_of(thing: Any) -> Any:
    """Find the Keras that a model, a layer or an optimizer is made with.

    Args:
        thing: The model, layer or optimizer.

    Returns:
        The package.

    Raises:
        ValueError: If it is of no Keras.
    """
    for base in type(thing).__mro__:
        package = base.__module__.partition(".")[0]
        if package in _PACKAGES:
            return sys.modules[package]
    raise ValueError(f"{type(thing).__name__} is not of Keras.")


def is_keras3(thing: Any) -> bool:
    """Return whether something is of Keras 3 rather than of Keras 2.

    Args:
        thing: A model, a layer or an optimizer.

    Returns:
        True for Keras 3 and newer.
    """
    return int(keras_of(thing).__version__.partition(".")[0]) >= 3
