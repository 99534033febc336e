"""A cross-entropy that expects probabilities and is given other values is warned of."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.loss import CrossEntropy
from tests.conformance.frameworks import FRAMEWORKS

WAYS = pytest.mark.parametrize(
    "way",
    [
        "torch",
        pytest.param("tf-eager", marks=pytest.mark.tf),
        pytest.param("tf-static", marks=pytest.mark.tf),
    ],
)
LOGITS = np.array([[-1.0, 2.0, 0.5], [0.1, 0.2, 0.3]], np.float32)
PROBABILITIES = np.array([[0.1, 0.7, 0.2], [0.0, 1.0, 0.0]], np.float32)


def warned(way: str, values: Any, steps: int = 3, **options: Any) -> list[str]:
    """Return what is warned of when a loss gets values, from an op that is no linear layer."""
    framework = FRAMEWORKS[way]
    loss = CrossEntropy(("scores", "t"), "loss", **options)
    network: Any = fastnet.Network([LambdaOp(lambda x: x * 1, "x", "scores"), loss])
    batch = {"x": framework.tensor(values), "t": framework.tensor(np.array([1, 0]))}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            with network("eval", 1, eager=way == "tf-eager"):
                for _ in range(steps):
                    network.run_step(batch)
    return [str(one.message) for one in caught if "CrossEntropy" in str(one.message)]


@WAYS
def test_logits_are_warned_of_once_with_their_range(way: str) -> None:
    (text,) = warned(way, LOGITS)
    assert "CrossEntropy (op 1" in text
    assert "expects probabilities, but 'scores' has values from -1 to 2. Pass from_logits" in text


@WAYS
def test_probabilities_and_declared_logits_are_not_warned_of(way: str) -> None:
    assert warned(way, PROBABILITIES) == []
    assert warned(way, LOGITS, from_logits=True) == []
