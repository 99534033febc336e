"""The precision that Keras gives to the models that are made meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["keras_is_loaded", "keras_precision"]

_PACKAGES = ("keras", "tf_keras")


def keras_is_loaded() -> bool:
    """Tell whether a program has imported any Keras."""
    return any(package in sys.modules for package in _PACKAGES)


@contextmanager
def keras_precision(mixed: bool) -> Iterator[None]:
    """Set the precision of models that are made in this context.

    The process has its own precision policy back afterwards. A Keras that is not imported yet is
    left alone.

    Args:
        mixed: Whether to compute in half precision where it is safe, rather than in float32.
    """
    tensorflow = sys.modules.get("tensorflow")
    if mixed and tensorflow is not None:
        tensorflow.keras.Model  # noqa: B018  (TensorFlow imports its Keras when it is first used)
    policies = [_policy_of(sys.modules[name]) for name in _PACKAGES if name in sys.modules]
    before = [read() for read, _ in policies]
    try:
        for _, write in policies:
            write("mixed_float16" if mixed else "float32")
        yield
    finally:
        for (_, write), policy in zip(policies, before, strict=True):
            write(policy)


def _policy_of(keras: Any) -> tuple[Any, Any]:
    if hasattr(keras, "config") and hasattr(keras.config, "set_dtype_policy"):
        return keras.config.dtype_policy, keras.config.set_dtype_policy
    return keras.mixed_precision.global_policy, keras.mixed_precision.set_global_policy
