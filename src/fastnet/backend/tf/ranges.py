"""Ranges in the profiles of TensorFlow: one around each op that runs by itself, with its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from fastnet.backend.ranges import OpRanges
from fastnet.backend.tf._internals import profiler_is_on

__all__ = ["op_ranges", "profiler_is_on"]


def op_ranges(names: Callable[[], Sequence[str]]) -> OpRanges:
    """Return the object that names ops in TensorFlow's profiler. Those in graphs have name scopes.

    Args:
        names: Gives the name of each op, when there is a range to name.
    """
    return OpRanges(names, tf.profiler.experimental.Trace, profiler_is_on)
