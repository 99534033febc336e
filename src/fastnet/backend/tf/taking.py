"""How ops take gradients in TensorFlow."""

from __future__ import annotations

from fastnet.backend.tf.gradients import get_gradient, gradient_of_pair
from fastnet.types import Forward

__all__ = ["pair_taker", "take"]

# TensorFlow notes with each of its ops the Python functions that have called it: the fewer of them,
# and the shorter they are, the better
take = get_gradient


def pair_taker(retain_graph: bool) -> Forward:
    """Give what differentiates the second of two values by the first, and returns a list."""
    del retain_graph  # the tape is there for the whole step
    return gradient_of_pair
