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


def read_precision(given: Any) -> Precision:
    """Parse `mixed_precision`: a bool, a name of torch, Keras or Lightning, or None for float32."""
    if given is None:
        return False
    if isinstance(given, (int, np.bool_)) and given in (0, 1):
        return bool(given)
    if not isinstance(given, str) or given not in _NAMES:
        raise ValueError(
            f"mixed_precision is True (bfloat16 for torch on a CPU, else float16), False, or one "
            f"of {list(_NAMES)}, not {shorten(given)}."
        )
    return _NAMES[given]


@contextmanager
def keras_precision(mixed: Precision) -> Iterator[list[str]]:
    """Set Keras's precision policy in this context, and yield the Keras packages it is set for.

    A Keras that is not imported yet is not affected.
    """
    policy_name = f"mixed_{'float16' if mixed is True else mixed}" if mixed else "float32"
    tensorflow = sys.modules.get("tensorflow")
    if mixed and tensorflow is not None:
        tensorflow.keras.Model  # noqa: B018  (TensorFlow imports its Keras when it is first used)
    packages = [name for name in _PACKAGES if name in sys.modules]
    policies = [_policy_of(sys.modules[name]) for name in packages]
    before = [_current(read) for read, _ in policies]
    try:
        for _, write in policies:
            write(policy_name)
        yield packages
    finally:
        for (_, write), policy in zip(policies, before, strict=True):
            write(policy)


def compute_precision() -> str:
    """Return the compute dtype of Keras's policy: "float16" if that is set, else "float32"."""
    for name in _PACKAGES:
        keras = sys.modules.get(name)
        if keras is not None and _policy_of(keras)[0]().compute_dtype == "float16":
            return "float16"
    return "float32"


def float_dtype() -> str:
    """Return Keras's default dtype of floats, "float32" unless the program has set another."""
    for name in _PACKAGES:
        if name in sys.modules:
            return str(sys.modules[name].backend.floatx())
    return "float32"


def policy_name(keras: Any) -> str:
    """Return the name of the global policy of a Keras package."""
    return str(_policy_of(keras)[0]().name)


@cache
def _policy_of(keras: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    if hasattr(keras, "config") and hasattr(keras.config, "set_dtype_policy"):
        return keras.config.dtype_policy, keras.config.set_dtype_policy
    return keras.mixed_precision.global_policy, keras.mixed_precision.set_global_policy


def _current(read: Callable[[], Any]) -> Any:
    policy = read()
    # Keras 2 creates a policy on each call if none was set, and None unsets it again.
    return policy if read() is policy else None
