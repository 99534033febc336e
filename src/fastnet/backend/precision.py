"""The precision that Keras gives to the models that are made meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

__all__ = ["compute_precision", "keras_precision"]

_PACKAGES = ("keras", "tf_keras")


@contextmanager
def keras_precision(mixed: bool) -> Iterator[list[str]]:
    """Set the precision of models that are made in this context.

    The process has its own precision policy back afterwards. A Keras that is not imported yet is
    left alone.

    Args:
        mixed: Whether to compute in half precision where it is safe, rather than in float32.

    Yields:
        The names of the Keras packages whose models it holds for.
    """
    tensorflow = sys.modules.get("tensorflow")
    if mixed and tensorflow is not None:
        tensorflow.keras.Model  # noqa: B018  (TensorFlow imports its Keras when it is first used)
    packages = [name for name in _PACKAGES if name in sys.modules]
    policies = [_policy_of(sys.modules[name]) for name in packages]
    before = [_current(read) for read, _ in policies]
    try:
        for _, write in policies:
            write("mixed_float16" if mixed else "float32")
        yield packages
    finally:
        for (_, write), policy in zip(policies, before, strict=True):
            write(policy)


def compute_precision() -> str:
    """Name the type that the process's precision policy has models compute in.

    Returns:
        "float16" where Keras is set to mixed precision with it, else "float32".
    """
    for name in _PACKAGES:
        keras = sys.modules.get(name)
        if keras is not None and _policy_of(keras)[0]().compute_dtype == "float16":
            return "float16"
    return "float32"


@cache
def _policy_of(keras: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    if hasattr(keras, "config") and hasattr(keras.config, "set_dtype_policy"):
        return keras.config.dtype_policy, keras.config.set_dtype_policy
    return keras.mixed_precision.global_policy, keras.mixed_precision.set_global_policy


def _current(read: Callable[[], Any]) -> Any:
    policy = read()
    # Keras 2 makes one up each time where none was set, and None unsets it again
    return policy if read() is policy else None
