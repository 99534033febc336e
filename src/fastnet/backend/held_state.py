"""State that an op or a model may hold beside weights, in a form that can be saved."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class HeldState(NamedTuple):
    """Reads and writes the state of an object, such as a random number generator."""

    kind: str
    is_random: bool
    read: Callable[[], Any]
    write: Callable[[Any], object]


def generator_state(value: Any) -> HeldState | None:
    """Return the state of a random number generator of Python or numpy; else None."""
    kind = type(value).__name__
    if isinstance(value, np.random.Generator):
        return generator_state(value.bit_generator)
    if isinstance(value, np.random.BitGenerator):
        generator: Any = value
        return HeldState(
            kind, True, lambda: generator.state, lambda state: setattr(generator, "state", state)
        )
    if isinstance(value, np.random.RandomState):
        return HeldState(kind, True, lambda: value.get_state(legacy=False), value.set_state)
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return HeldState(kind, True, value.getstate, value.setstate)
    return None
