"""Ranges in the profiles of TensorFlow: one around each op that runs by itself, with its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import tensorflow as tf
from tensorflow.python.profiler import trace

__all__ = ["OpRanges", "profiler_is_on"]


def profiler_is_on() -> bool:
    """Tell whether the profiler is on."""
    # a variable in older releases, a function in newer ones
    enabled: Any = trace.enabled
    return bool(enabled() if callable(enabled) else enabled)


class OpRanges:
    """Names ops in TensorFlow's profiler. Those in graphs have name scopes, which it shows too.

    Args:
        names: Gives the name of each op. It is not called before there is a range to name: most
            openings of a network have none.
    """

    def __init__(self, names: Callable[[], Sequence[str]]) -> None:
        self._give_names = names
        self._open: list[Any] = []

    @cached_property
    def _names(self) -> Sequence[str]:
        return self._give_names()

    def active(self) -> bool:
        """Tell whether the profiler is on."""
        return profiler_is_on()

    def before(self, place: int) -> None:
        """Begin the range of an op.

        Args:
            place: The op's place.
        """
        opened = tf.profiler.experimental.Trace(self._names[place])
        opened.__enter__()
        self._open.append(opened)

    def after(self, place: int) -> None:
        """End it.

        Args:
            place: The op's place.
        """
        self._open.pop().__exit__(None, None, None)
