"""Which programs are run: how many there are, and which of them are TensorFlow's."""

from __future__ import annotations

import os

_PROGRAMS = int(os.environ.get("FASTNET_PROGRAMS", "300"))
_FIRST = int(os.environ.get("FASTNET_FIRST_PROGRAM", "0"))
# programs in TensorFlow trace, which takes longer than all else
_EACH = 12


def torch_seeds() -> list[int]:
    """Return the numbers of torch's programs."""
    return [seed for seed in range(_FIRST, _FIRST + _PROGRAMS) if seed % _EACH]


def tf_seeds() -> list[int]:
    """Return the numbers of TensorFlow's programs."""
    return [seed for seed in range(_FIRST, _FIRST + _PROGRAMS) if seed % _EACH == 0]
