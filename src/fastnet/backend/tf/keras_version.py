"""The Keras package, and its version, that a model or an optimizer belongs to."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["is_keras3", "keras_of"]

_PACKAGES = ("keras", "tf_keras")


def keras_of(thing: Any) -> Any:
    """Return the Keras package that a model, a layer or an optimizer is from."""
    for base in type(thing).__mro__:
        package = base.__module__.partition(".")[0]
        if package in _PACKAGES:
            return sys.modules[package]
    raise ValueError(f"{type(thing).__name__} is not from Keras.")


def is_keras3(thing: Any) -> bool:
    """Return whether a model, a layer or an optimizer is from Keras 3 rather than Keras 2."""
    return int(keras_of(thing).__version__.partition(".")[0]) >= 3
