"""Ranges in the profiles of TensorFlow: one around each op that runs by itself, with its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.profiler import trace

from fastnet.backend.ranges import OpRanges

__all__ = ["op_ranges", "profiler_is_on"]


def profiler_is_on() -> bool:
    """Tell whether the profiler is on."""
    # a variable in older releases, a function in newer ones
    enabled: Any = trace.enabled
    return bool(enabled() if callable(enabled) else enabled)


def op_ranges(names: Callable[[], Sequence[str]]) -> OpRanges:
    """Give what names ops in TensorFlow's profiler. Those in graphs have name scopes.

    Args:
        names: Gives the name of each op, when there is a range to name.
    """
    return OpRanges(names, tf.profiler.experimental.Trace, profiler_is_on)
