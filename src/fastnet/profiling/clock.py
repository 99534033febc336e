"""What measuring takes, which is left out of what it measures."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from fastnet._stamps import StampLog

__all__ = ["StampCost"]

_ROUNDS = 200
_STAMPS = 100


@dataclass(frozen=True)
class StampCost:
    """What making a stamp takes, in seconds.

    Attributes:
        kernel: One that the kernel makes.
        python: One that is made by a call from Python.
    """

    kernel: float
    python: float

    @classmethod
    def measure(cls) -> StampCost:
        """Measure it: the least of many rounds, each too short to be disturbed often."""
        log = StampLog()
        kernel = python = float("inf")
        for _ in range(_ROUNDS):
            log.keep(0)
            started = perf_counter()
            log.stamp_many(0, _STAMPS)
            kernel = min(kernel, perf_counter() - started)
            stamp = log.stamp
            log.keep(0)
            started = perf_counter()
            for _ in range(_STAMPS):
                stamp(0)
            python = min(python, perf_counter() - started)
        return cls(kernel / _STAMPS, python / _STAMPS)

    def of(self, in_kernel: bool) -> float:
        """Return what one stamp takes.

        Args:
            in_kernel: Whether the kernel makes it.
        """
        return self.kernel if in_kernel else self.python
