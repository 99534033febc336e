"""What a run's blocks of steps tell of all runs like it: means, their errors, and differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import atan, cos, hypot, inf, pi, sin, sqrt

import numpy as np
from numpy.typing import NDArray

__all__ = ["Estimate", "adjusted", "chance", "quantile"]

# a run that drifts all the time looks as if each block had the value of the one before: what is
# left is taken for this many independent blocks at least
_LEAST_INDEPENDENT = 2.0
_MOST_CORRELATED = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean and how sure it is.

    Attributes:
        mean: The mean.
        error: Its standard error.
        freedom: Of how many independent differences the error was made.
    """

    mean: float
    error: float
    freedom: float

    @classmethod
    def of(cls, blocks: Sequence[float] | NDArray[np.float64]) -> Estimate:
        """Estimate the mean of what blocks that follow each other are drawn from.

        A busy machine, or one that warms up, makes blocks alike that are near each other. So many
        as are independent count: with the correlation r of neighbours, n blocks are worth
        n (1 - r) / (1 + r).

        Args:
            blocks: Their values in order, at least four.

        >>> Estimate.of([1.0, 3.0] * 8).mean
        2.0
        """
        values = np.asarray(blocks, float)
        count = len(values)
        rest = values - values.mean()
        spread = float(rest @ rest)
        alike = float(rest[1:] @ rest[:-1]) / spread if spread else 0.0
        # the correlation of few values is found too small, by (1 + 4 r) / n
        alike = min(max((count * alike + 1) / (count - 4) if count > 4 else 1.0, 0.0), 1.0)
        alike = min(alike, _MOST_CORRELATED)
        worth = max(count * (1 - alike) / (1 + alike), _LEAST_INDEPENDENT)
        # around their own mean, blocks that are alike spread less than around the true one
        variance = spread / count * worth / (worth - 1)
        return cls(float(values.mean()), sqrt(variance / worth), worth - 1)

    def __sub__(self, other: Estimate) -> Estimate:
        """Return the difference of two runs (with the freedom of Welch and Satterthwaite)."""
        error = hypot(self.error, other.error)
        parts = sum(one.error**4 / one.freedom for one in (self, other))
        freedom = error**4 / parts if parts else inf
        return Estimate(self.mean - other.mean, error, freedom)

    def chance(self) -> float:
        """Return how likely a mean as far from 0 as this one is where the true one is 0."""
        if not self.error:
            return float(not self.mean)
        return chance(abs(self.mean) / self.error, self.freedom)

    def reach(self, level: float = 0.95) -> float:
        """Return how far the interval goes to either side of the mean.

        Args:
            level: How often such an interval holds the true mean.
        """
        return self.error * quantile(level, self.freedom)


def chance(distance: float, freedom: float) -> float:
    """Return the chance that Student's t is farther from 0 than a distance.

    Args:
        distance: The distance, not negative.
        freedom: The degrees of freedom; what is no whole number is rounded down.

    >>> round(chance(2.228, 10), 3)
    0.05
    """
    degrees = _whole(freedom)
    angle = atan(distance / sqrt(degrees))
    turned, square = sin(angle), cos(angle) ** 2
    # the finite sums that there are for whole degrees of freedom
    odd = degrees % 2
    term = total = cos(angle) if odd else 1.0
    if degrees == 1:
        total = 0.0
    for number in range(2 + odd, degrees - 1, 2):
        term *= square * (number - 1) / number
        total += term
    within = 2 / pi * (angle + turned * total) if odd else turned * total
    return max(1.0 - within, 0.0)


def _whole(freedom: float) -> int:
    # with so many t is normal, as good as
    return max(int(min(freedom, 200.0)), 1)


def quantile(level: float, freedom: float) -> float:
    """Return the distance from 0 that Student's t keeps within.

    Args:
        level: How often it does.
        freedom: The degrees of freedom.

    >>> round(quantile(0.95, 10), 3)
    2.228
    """
    return _quantile(level, _whole(freedom))


@cache
def _quantile(level: float, degrees: int) -> float:
    low, high = 0.0, 1.0
    while chance(high, degrees) > 1 - level:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle, degrees) > 1 - level else (low, middle)
    return high


def adjusted(chances: Sequence[float]) -> list[float]:
    """Correct chances for that there are many of them, as Holm does.

    Args:
        chances: The chance of each of some comparisons.

    Returns:
        For each the level at which it is found among all of them.

    >>> adjusted([0.01, 0.5, 0.02])
    [0.03, 0.5, 0.04]
    """
    made = [0.0] * len(chances)
    worst = 0.0
    order = sorted(range(len(chances)), key=lambda place: chances[place])
    for rank, place in enumerate(order):
        worst = max(worst, min(chances[place] * (len(chances) - rank), 1.0))
        made[place] = worst
    return made
