"""TensorFlow's own log, kept quiet where it tells what a program has not asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

__all__ = ["quiet"]

_lock = threading.Lock()
_levels: list[int] = []
_before: list[int] = []


@contextmanager
def quiet(level: int) -> Iterator[None]:
    """Hold back what TensorFlow logs below a level.

    It may be entered by several threads, in any order: the log is as it was when the last of them
    has left.

    Args:
        level: The level, of `logging`. A log that is quieter already stays so.
    """
    logger = tf.get_logger()
    with _lock:
        if not _levels:
            _before[:] = [logger.level, logger.getEffectiveLevel()]
        _levels.append(level)
        logger.setLevel(max(_before[1], *_levels))
    try:
        yield
    finally:
        with _lock:
            _levels.remove(level)
            logger.setLevel(max(_before[1], *_levels) if _levels else _before[0])
