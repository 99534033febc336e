"""The random numbers of Python and of numpy, as a run goes on from them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

__all__ = ["check_random", "kept_random", "load_random", "random_state"]

_PYTHON, _NUMPY = "python", "numpy"
_WORDS = 624  # of the generator that both use


def random_state() -> dict[str, Any]:
    """Return the states of the generators that `random` and `numpy.random` share out.

    Returns:
        The states, by "python" and "numpy".
    """
    return {_PYTHON: random.getstate(), _NUMPY: np.random.get_state(legacy=False)}


def check_random(state: Any, source: str) -> None:
    """Check that states are such of these generators.

    Args:
        state: What is said to be them.
        source: Where they are from, for the error's text.

    Raises:
        ValueError: If they are not.
    """
    try:
        random.Random().setstate(state[_PYTHON])
        # which a program can have replaced
        kind: Any = type(np.random.mtrand.get_bit_generator())
        np.random.RandomState(kind()).set_state(state[_NUMPY])
        place = state[_NUMPY]["state"].get("pos", 0)
        # numpy would read from any place that it is told
        if not 0 <= place <= _WORDS:
            raise ValueError(f"the place of numpy's is {place}")
    except Exception as error:
        raise ValueError(
            f"{source} has no state of random numbers of Python and numpy: {error!r}. Save it anew."
        ) from error


def load_random(state: dict[str, Any]) -> None:
    """Restore the states of the generators.

    Args:
        state: What `random_state` gave.
    """
    random.setstate(state[_PYTHON])
    np.random.set_state(state[_NUMPY])


@contextmanager
def kept_random() -> Iterator[None]:
    """Restore the states of the generators if something fails meanwhile."""
    before = random_state()
    try:
        yield
    except BaseException:
        load_random(before)
        raise
