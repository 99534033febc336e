"""What ops that take gradients have in numpy: a refusal."""

from __future__ import annotations

from fastnet.backend.numpy.gradients import get_gradient

__all__ = ["take"]

take = get_gradient
