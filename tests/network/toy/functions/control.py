"""Choices and loops: plain Python ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastnet.types import Forward


def chooser(prob: float, yes: Forward, no: Forward) -> Forward:
    def choose(data: Any, state: Any) -> Any:
        return (yes if np.random.random_sample() < prob else no)(data, state)

    return choose


def one_of(probs: Sequence[float], branches: Sequence[Callable[[], Any]]) -> Any:
    return branches[int(np.random.choice(len(branches), p=probs))]()
