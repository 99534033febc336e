"""Steps of a run cut into blocks, whose medians a comparison goes by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastnet.profiling.pace import Pace

__all__ = ["LEAST_STEPS", "Blocks"]

_BLOCKS = 20
_LEAST_BLOCKS = 8
_LEAST_ROUNDS = 3
LEAST_STEPS = _LEAST_BLOCKS * _LEAST_ROUNDS


@dataclass(frozen=True)
class Blocks:
    """Which steps of a run count, and how they are put together.

    Attributes:
        chosen: The rounds of steps that count: those that the machine was at full pace in, or all
            if these are too few.
        period: How many steps a round has.
        slowness: How many times as long as at full pace anything may have taken in these.
    """

    chosen: NDArray[np.int64]
    period: int
    slowness: float = 1.0

    @classmethod
    def of(cls, pace: Pace | None, steps: int, period: int) -> Blocks:
        """Choose the rounds.

        Args:
            pace: How fast the machine was at each step; None for the same at all of them.
            steps: How many steps there are.
            period: After how many steps the ops come round, as where every fourth one updates: a
                round is always as much work.
        """
        full = np.ones(steps, bool) if pace is None else pace.is_full()
        whole = full[: len(full) // period * period].reshape(-1, period)
        rounds: NDArray[np.bool_] = np.logical_and.reduce(whole, axis=1)
        if pace is not None and rounds.sum() < LEAST_STEPS:
            return cls(np.arange(len(rounds)), period, pace.slowness())
        return cls(np.flatnonzero(rounds), period)

    def medians(self, times: NDArray[np.float64]) -> tuple[float, ...]:
        """Return the median of each block, in order.

        Args:
            times: What each step takes.

        Returns:
            The medians, a step's share of a round; none if there are too few rounds to tell.
        """
        return tuple(float(np.median(block)) for block in self._cut(times))

    def means(self, times: Sequence[float]) -> tuple[float, ...]:
        """Return the mean of each block, in order.

        Args:
            times: What each step takes.

        Returns:
            The means; none if there are too few rounds to tell.
        """
        return tuple(float(block.mean()) for block in self._cut(np.array(times)))

    def _cut(self, times: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        count = min(_BLOCKS, len(self.chosen) // _LEAST_ROUNDS)
        if count < _LEAST_BLOCKS:
            return []
        rounds = times[: len(times) // self.period * self.period].reshape(-1, self.period)
        return np.array_split(rounds.mean(axis=1)[self.chosen], count)
