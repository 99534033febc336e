"""Suppresses messages in TensorFlow's log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

__all__ = ["quiet"]


@contextmanager
def quiet(level: int) -> Iterator[None]:
    """Suppress messages below a level."""

    def is_loud(record: logging.LogRecord) -> bool:
        return record.levelno >= level

    logger = tf.get_logger()
    logger.addFilter(is_loud)
    try:
        yield
    finally:
        logger.removeFilter(is_loud)
