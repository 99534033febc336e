"""Averages that go along with training, in PyTorch."""

from __future__ import annotations

import torch

__all__ = ["MovingAverage"]


class MovingAverage:
    """A mean of values that forgets the old ones.

    Args:
        rate: How much of a new value goes into it.
    """

    def __init__(self, rate: float = 0.1) -> None:
        self._rate = rate
        self._mean: torch.Tensor | None = None

    def update(self, value: torch.Tensor, keep: bool) -> torch.Tensor:
        """Take a value into the mean.

        Args:
            value: The value, a scalar.
            keep: Whether this can be the first value that counts.

        Returns:
            The mean, which no gradient goes through.
        """
        value = value.detach()
        # one that was set has no type and no device yet
        last = self._mean if self._mean is None else self._mean.to(value)
        mean = value if last is None else last - self._rate * (last - value)
        if keep or self._mean is not None:
            self._mean = mean
        return mean

    @property
    def value(self) -> float | None:
        """The mean, None as long as nothing counts."""
        return None if self._mean is None else float(self._mean)

    @value.setter
    def value(self, value: float | None) -> None:
        self._mean = None if value is None else torch.tensor(value, dtype=torch.float64)
