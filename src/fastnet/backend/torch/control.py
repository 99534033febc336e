"""Choices and loops, in PyTorch: plain Python ones."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch

from fastnet.types import Forward, State

__all__ = ["chooser", "one_of", "repeat_while", "when"]

T = TypeVar("T")


def chooser(prob: float, yes: Forward, no: Forward) -> Forward:
    """Make one thing of two, drawn anew each time.

    Args:
        prob: How likely the first is; drawn from torch's generator of the CPU.
        yes: The first.
        no: The second.

    Returns:
        What takes what either takes, calls one of them, and returns what that does.
    """

    def choose(data: Any, state: State) -> Any:
        return yes(data, state) if prob > torch.rand(()).item() else no(data, state)

    return choose


def one_of(probs: Sequence[float], branches: Sequence[Callable[[], T]]) -> T:
    """Do one of several things.

    Args:
        probs: How likely each is; drawn from numpy's global generator, as FastEstimator does.
        branches: The things to do.

    Returns:
        What the chosen one returns.
    """
    # what numpy's `choice` does with the one number that it draws
    return branches[bisect_right(_sums_of(tuple(probs)), np.random.random_sample())]()


@lru_cache(maxsize=64)
def _sums_of(probs: tuple[float, ...]) -> list[float]:
    sums = np.array(probs, dtype="float64").cumsum()
    found: list[float] = (sums / sums[-1]).tolist()
    return found


def repeat_while(
    condition: Callable[[T], Any], body: Callable[[T], T], value: T, most: int | None
) -> T:
    """Change a value as long as a condition on it holds.

    Args:
        condition: The condition.
        body: Gives the next value.
        value: The first value.
        most: How many times at most, or None.

    Returns:
        The last value.
    """
    count = 0
    while (most is None or count < most) and condition(value):
        value = body(value)
        count += 1
    return value


def when(condition: Any, yes: Callable[[], T], no: Callable[[], T]) -> T:
    """Do one of two things, as a condition says.

    Args:
        condition: True or False.
        yes: What to do if it holds.
        no: What to do else.

    Returns:
        What the chosen one returns.
    """
    return yes() if condition else no()
