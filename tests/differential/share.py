"""The numbers of the random programs that run; FASTNET_PROGRAMS is how many in each framework."""

from __future__ import annotations

import os

_FIRST = int(os.environ.get("FASTNET_FIRST_PROGRAM", "0"))


def torch_seeds() -> list[int]:
    """Return the numbers of torch's programs."""
    return _seeds(300)


def tf_seeds() -> list[int]:
    """Return the numbers of TensorFlow's programs."""
    return _seeds(100)


def _seeds(count: int) -> list[int]:
    return list(range(_FIRST, _FIRST + int(os.environ.get("FASTNET_PROGRAMS", count))))
