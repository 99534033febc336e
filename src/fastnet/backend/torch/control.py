"""Random choices, conditions and loops, which are plain Python in PyTorch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch

from fastnet.types import Forward, State

T = TypeVar("T")


def chooser(prob: float, yes: Forward, no: Forward) -> Forward:
    """Return a forward that runs `yes` with probability `prob`, else `no`. Draws from torch."""

    def choose(data: Any, state: State) -> Any:
        return yes(data, state) if prob > torch.rand(()).item() else no(data, state)

    return choose


def one_of(probs: Sequence[float], branches: Sequence[Callable[[], T]]) -> T:
    """Call one of several branches, drawn from numpy's generator as in FastEstimator."""
    # `numpy.random.choice` finds the branch of its one random number in the same way.
    return branches[bisect_right(_sums_of(tuple(probs)), np.random.random_sample())]()


@lru_cache(maxsize=64)
def _sums_of(probs: tuple[float, ...]) -> list[float]:
    sums = np.array(probs, dtype="float64").cumsum()
    cumulative: list[float] = (sums / sums[-1]).tolist()
    return cumulative


def repeat_while(
    condition: Callable[[T], Any], body: Callable[[T], T], value: T, max_iterations: int | None
) -> T:
    """Apply a function to a value while a condition holds, at most `max_iterations` times."""
    count = 0
    while (max_iterations is None or count < max_iterations) and condition(value):
        value = body(value)
        count += 1
    return value


def when(condition: Any, yes: Callable[[], T], no: Callable[[], T]) -> T:
    """Call `yes` if the condition is true, else `no`."""
    return yes() if condition else no()
