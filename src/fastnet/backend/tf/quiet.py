"""Suppresses messages in TensorFlow's log."""

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
    """Suppress messages below a level; threads may enter and leave in any order."""
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
