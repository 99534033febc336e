"""Which framework's functions a value needs, found by its type."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from fastnet.util.lazy import import_late

__all__ = ["implementation", "module_for"]

# for each framework: the module its types come from, their names, and the package that speaks it
FAMILIES = (
    ("torch", ("Tensor",), "fastnet.backend.torch"),
    ("tensorflow", ("Tensor", "Variable"), "fastnet.backend.tf"),
    ("numpy", ("ndarray", "generic"), "fastnet.backend.numpy"),
)

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


def module_for(op: object, value: object, name: str) -> Any:
    """Find a module of the package that speaks a tensor's framework.

    Args:
        op: The op that asks, for error texts.
        value: A tensor.
        name: The module, which numpy's package has not.

    Returns:
        The module.

    Raises:
        TypeError: If the value is an array.
        ValueError: If it is of no framework that fastnet knows.
    """
    package = implementation(value).__name__
    if package.endswith(".numpy"):
        raise TypeError(
            f"{type(op).__name__} runs on tensors of torch or TensorFlow, but got an array of type "
            f"{type(value).__name__}. Make a tensor of it first."
        )
    return import_module(f"{package}.{name}")


def _find(value: object) -> Any:
    for framework, names, package in FAMILIES:
        # what was never imported cannot have made the value
        module = sys.modules.get(framework)
        if module is None:
            continue
        # Keras 3's variables are of no class of TensorFlow's, but say that they stand for a tensor
        stands_for = framework == "tensorflow" and hasattr(type(value), "__tf_tensor__")
        if stands_for or isinstance(value, tuple(getattr(module, name) for name in names)):
            found = import_late(package)
            _by_type[type(value)] = found
            return found
    raise ValueError(
        f"Unrecognized tensor type {type(value).__name__}: expected a tensor of "
        f"torch, tensorflow or numpy, but got {_shorten(value)}."
    )


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
