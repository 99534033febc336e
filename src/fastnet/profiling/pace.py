"""How fast the machine runs while steps are measured, by what the same work takes each time."""

from __future__ import annotations

from array import array
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

__all__ = ["TOLERANCE", "Pace"]

# the machine is at its full pace where the work takes so much longer than at best, and no more
TOLERANCE = 0.03
# what is taken for the best: the very least may be a slip of the clock
_BEST = 0.02
# beyond this it was put off for another program, which medians leave out
_MOST = 0.95
# short steps are not to be disturbed after each of them
_APART = 100e-6
_NONE = float("nan")


class Pace:
    """What a fixed piece of work takes after each step, or so.

    What else a machine does slows it down for moments, by a half and more, and no number of steps
    tells that from a step that has become slower. A piece of work that never changes does: the
    steps between two of its runs at full pace were at full pace too.
    """

    def __init__(self) -> None:
        self._taken = array("d")
        self._last = 0.0

    def take(self) -> None:
        """Do the work after a step, and note what it takes; not where it was just done."""
        started = perf_counter()
        if started - self._last < _APART:
            self._taken.append(_NONE)
            return
        # with the caches as the step has left them: what others do to these slows steps down too
        _work()
        self._last = perf_counter()
        self._taken.append(self._last - started)

    def best(self) -> float | None:
        """Return what the work takes at full pace, in seconds; None if it was never done."""
        taken = np.array(self._taken)
        taken = taken[~np.isnan(taken)]
        return float(np.quantile(taken, _BEST)) if len(taken) else None

    def slowness(self) -> float:
        """Return how many times as long as at full pace the work took, a twentieth of it aside."""
        best, taken = self.best(), np.array(self._taken)
        if not best:
            return 1.0
        return max(float(np.nanquantile(taken, _MOST)) / best, 1.0)

    def is_full(self) -> NDArray[np.bool_]:
        """Tell for each step whether the machine was at full pace before and after it."""
        best, taken = self.best(), np.array(self._taken)
        if best is None:
            return np.zeros(len(taken), bool)
        known = np.flatnonzero(~np.isnan(taken))
        places = np.arange(len(taken))
        # a step without a run of its own goes by the one before it and by the next
        following = np.searchsorted(known, places)
        after = taken[known[np.minimum(following, len(known) - 1)]]
        before = taken[known[np.maximum(following - 1, 0)]]
        full: NDArray[np.bool_] = np.maximum(before, after) <= best * (1 + TOLERANCE)
        return full


def _work() -> None:
    table: dict[int, tuple[int, object]] = {}
    for number in range(100):
        table[number & 7] = number, table.get(number & 3)
