"""Helpers for tests of `TFNetwork`: ops that count their calls, and reasons for traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fastnet.network import TFNetwork
from fastnet.op.tensorop import TensorOp
from tests.network.keras_models import tf

EITHER_WAY = pytest.mark.parametrize("eager", [False, True], ids=["static", "eager"])

CONSTANT = "; a value that is not a tensor is a constant"
FITS = "; from now on any length of axis 0 fits"


class Counting(TensorOp):
    """Hands its input through, and counts how often Python does so."""

    runs = 0

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        self.runs += 1
        return data


class Doing(TensorOp):
    """Calls a function with data and state; AutoGraph leaves both alone."""

    def __init__(self, fn: Callable[[Any, Any], Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fn = tf.autograph.experimental.do_not_convert(fn)

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        return self.fn(data, state)


def reasons(network: TFNetwork) -> list[str]:
    """List why a network has traced."""
    assert [trace.number for trace in network.traces] == list(range(1, len(network.traces) + 1))
    return [trace.reason for trace in network.traces]


def first(mode: str = "infer") -> str:
    """Return the reason of a mode's first trace."""
    return f"first step in mode '{mode}'"


def ones(*shape: int, dtype: str = "float32") -> Any:
    """Return a tensor of ones."""
    return tf.ones(shape, dtype)
