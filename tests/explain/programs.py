"""Ops and random programs that the tests of explanations share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from fastnet.op.numpyop import Delete as DeleteArrays
from fastnet.op.numpyop import NumpyOp
from fastnet.op.tensorop import Delete, LambdaOp, TensorOp

KEYS = "abcde"


def passing(inputs: Any, outputs: Any, **kwargs: Any) -> LambdaOp:
    """Return an op whose outputs have the value of its first input."""
    return LambdaOp(lambda *values: values[0], inputs, outputs, **kwargs)


class Mix(TensorOp):
    """Writes values that no other op writes, and that depend on all that it reads."""

    def __init__(self, number: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.in_list = self.out_list = True
        self.number = number

    def forward(self, data: list[Any], state: Any) -> list[Any]:
        return [
            _mix(data, torch.sin, self.number, place) + torch.zeros(2, dtype=torch.float64)
            for place in range(len(self.outputs))
        ]


class MixArrays(NumpyOp):
    """The same for arrays."""

    def __init__(self, number: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.in_list = self.out_list = True
        self.number = number

    def forward_batch(self, data: list[Any], state: Any) -> list[Any]:
        return [
            _mix(data, np.sin, self.number, place) + np.zeros(2)
            for place in range(len(self.outputs))
        ]


def _mix(data: list[Any], sin: Any, number: int, place: int) -> Any:
    own = math.sqrt(2 + 3 * number + place)
    return own + sum(sin(value * math.sqrt(5 + order)) for order, value in enumerate(data))


def batch() -> dict[str, Any]:
    """Return a batch that has every key."""
    return {
        key: torch.arange(2, dtype=torch.float64) + math.sqrt(30 + place)
        for place, key in enumerate(KEYS)
    }


_some_keys = st.lists(st.sampled_from(KEYS), unique=True, max_size=3)


@st.composite
def shapes(draw: st.DrawFn, most: int = 7) -> list[tuple[list[str], list[str]]]:
    """Draw what some ops read and write; those that write nothing delete what they read.

    What was deleted is not read before it is written again.
    """
    gone: set[str] = set()
    drawn = []
    for _ in range(draw(st.integers(1, most))):
        reads = [key for key in draw(_some_keys) if key not in gone]
        writes = draw(_some_keys)[:2]
        if not writes:
            if not reads:
                continue
            gone.update(reads)
        gone.difference_update(writes)
        drawn.append((reads, writes))
    return drawn


def make_ops(drawn: list[tuple[list[str], list[str]]]) -> list[Any]:
    """Make ops of what was drawn."""
    return [
        Mix(number, reads, writes) if writes else Delete(reads)
        for number, (reads, writes) in enumerate(drawn)
    ]


def make_postprocessing(drawn: list[tuple[list[str], list[str]]]) -> list[Any]:
    """Make postprocessing ops of what was drawn."""
    return [
        MixArrays(100 + number, reads, writes) if writes else DeleteArrays(reads)
        for number, (reads, writes) in enumerate(drawn)
    ]


desired_keys = st.lists(st.sampled_from(KEYS), unique=True, max_size=2)
