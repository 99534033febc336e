"""Precisions by name, and Keras's precision policy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from fastnet.errors import shorten

Precision = bool | str
"""False, "float16", "bfloat16", or True for bfloat16 in torch on a CPU and else float16."""

_NAMES: dict[str, Precision] = {
    "fp16": "float16",
    "fp16-mixed": "float16",
    "float16": "float16",
    "mixed_float16": "float16",
    "bf16": "bfloat16",
    "bf16-mixed": "bfloat16",
    "bfloat16": "bfloat16",
    "mixed_bfloat16": "bfloat16",
    "fp32": False,
    "float32": False,
}
_PACKAGES = ("keras", "tf_keras")


def read_precision(value: Any) -> Precision:
    """Parse `mixed_precision`: a bool, a name of torch, Keras or Lightning, or None for float32."""
    if value is None:
        return False
    if isinstance(value, (int, np.bool_)) and value in (0, 1):
        return bool(value)
    if not isinstance(value, str) or value not in _NAMES:
        raise ValueError(
            f"mixed_precision must be True (bfloat16 for torch on a CPU, else float16), False, or "
            f"one of {list(_NAMES)}, not {shorten(value)}."
        )
    return _NAMES[value]


@contextmanager
def keras_precision(mixed: Precision) -> Iterator[list[str]]:
    """Set Keras's precision policy in this context, and yield the Keras packages it is set for.

    A Keras that is not imported yet is not affected.
    """
    new_policy = "float32"
    if mixed:
        new_policy = "mixed_float16" if mixed is True else f"mixed_{mixed}"
    tensorflow = sys.modules.get("tensorflow")
    if mixed and tensorflow is not None:
        tensorflow.keras.Model  # noqa: B018  (TensorFlow imports its Keras when it is first used)
    packages = [name for name in _PACKAGES if name in sys.modules]
    accessors = [_policy_accessors(sys.modules[name]) for name in packages]
    previous_policies = [_assigned_policy(read) for read, _ in accessors]
    try:
        for _, write in accessors:
            write(new_policy)
        yield packages
    finally:
        for (_, write), policy in zip(accessors, previous_policies, strict=True):
            write(policy)


def compute_precision() -> str:
    """Return the compute dtype of Keras's policy: "float16" if that is set, else "float32"."""
    for name in _PACKAGES:
        keras = sys.modules.get(name)
        if keras is not None and _policy_accessors(keras)[0]().compute_dtype == "float16":
            return "float16"
    return "float32"


def float_dtype() -> str:
    """Return Keras's default dtype of floats, "float32" unless the user has set another."""
    for name in _PACKAGES:
        if name in sys.modules:
            return str(sys.modules[name].backend.floatx())
    return "float32"


def policy_name(keras: Any) -> str:
    """Return the name of the global policy of a Keras package."""
    return str(_policy_accessors(keras)[0]().name)


@cache
def _policy_accessors(keras: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Return the functions that get and set the global policy of a Keras package."""
    if hasattr(keras, "config") and hasattr(keras.config, "set_dtype_policy"):
        return keras.config.dtype_policy, keras.config.set_dtype_policy
    return keras.mixed_precision.global_policy, keras.mixed_precision.set_global_policy


def _assigned_policy(read: Callable[[], Any]) -> Any:
    """Return the global policy, or None if none was set."""
    policy = read()
    # Keras 2 creates a policy on each call if none was set, and None unsets it again.
    return policy if read() is policy else None
