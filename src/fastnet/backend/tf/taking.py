"""How ops take gradients in TensorFlow."""

from __future__ import annotations

from fastnet.backend.tf.gradients import get_gradient

__all__ = ["take"]

take = get_gradient
