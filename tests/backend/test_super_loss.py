"""The sample weights of SuperLoss, against forty digits of them."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from tests.backend.makers import WITH_GRADIENTS, gradient, make, read

mpmath = pytest.importorskip("mpmath")

END = -2 / math.e
# excesses: far below the end, around it, and up to losses that are nearly left out
EXCESSES = np.concatenate(
    [
        np.linspace(-6, END, 30),
        END + np.linspace(-1e-6, 1e-6, 41),
        END + np.logspace(-6, -1, 60),
        np.linspace(-0.6, 1, 40),
        np.logspace(0, 3, 40),
    ]
)
ROOM = {"float32": 2.0**-23, "float64": 2.0**-52}


def exact(excess: Any, regularization: float) -> tuple[Any, Any]:
    """Work out confidences and weighed losses."""
    pairs = []
    with mpmath.workdps(40):
        least = mpmath.mpf(-1.9999998 / math.e)
        for one in excess:
            beta = mpmath.mpf(float(one)) / mpmath.mpf(regularization)
            log = -mpmath.lambertw(max(beta, least) / 2).real
            confidence = mpmath.exp(log)
            weighed = regularization * (beta * confidence + log**2)
            pairs.append((float(confidence), float(weighed)))
    confidences, weighed = np.transpose(pairs)
    return confidences, weighed


def weigh(framework: str, excess: Any, regularization: float = 1.0) -> Any:
    return import_module(f"fastnet.backend.{framework}.super_loss").weigh(excess, regularization)


@pytest.mark.parametrize("regularization", [1.0, 0.25])
@pytest.mark.parametrize("dtype", list(ROOM))
@pytest.mark.parametrize("framework", ["torch", pytest.param("tf", marks=pytest.mark.tf)])
def test_values(framework: str, dtype: str, regularization: float) -> None:
    excess = (EXCESSES * regularization).astype(dtype)
    confidences, weighed = exact(excess, regularization)
    found = weigh(framework, make(framework, excess), regularization)
    room = 12 * ROOM[dtype]
    np.testing.assert_allclose(read(found[1]) / confidences, 1, atol=room)
    np.testing.assert_allclose(read(found[0]), weighed, rtol=room, atol=room)


@pytest.mark.parametrize("dtype", list(ROOM))
@WITH_GRADIENTS
class TestSlopes:
    def test_of_weighed_losses_are_the_confidences(self, framework: str, dtype: str) -> None:
        excess = EXCESSES.astype(dtype)
        confidences, _ = exact(excess, 1.0)
        found = gradient(framework, lambda x: weigh(framework, x)[0], excess)
        np.testing.assert_allclose(found / confidences, 1, atol=12 * ROOM[dtype])

    def test_of_confidences(self, framework: str, dtype: str) -> None:
        excess = EXCESSES.astype(dtype)
        excess = excess[np.abs(excess - END) > 1e-6]
        confidences, _ = exact(excess, 1.0)
        w = -np.log(confidences)
        wanted = np.where(excess > END, -(confidences**2) / 2 / (1 + w), 0)
        found = gradient(framework, lambda x: weigh(framework, x)[1], excess)
        # w tells less than the excess of where the end is
        room = 200 * ROOM[dtype] / np.maximum(1 + w, 1e-3) ** 2
        np.testing.assert_array_less(np.abs(found - wanted), room * np.abs(wanted) + ROOM[dtype])

    def test_of_slopes(self, framework: str, dtype: str) -> None:
        """Gradients can be taken of gradients, as by a penalty on them."""
        excess = np.array([-3.0, -0.7, 0.3, 4.0], dtype)

        def slopes(x: Any) -> Any:
            if framework == "torch":
                total = weigh(framework, x)[0].sum()
                return torch.autograd.grad(total, x, create_graph=True)[0]
            tf = pytest.importorskip("tensorflow")
            with tf.GradientTape() as tape:
                tape.watch(x)
                total = weigh(framework, x)[0]
            return tape.gradient(total, x)

        found = gradient(framework, slopes, excess)
        wanted = gradient(framework, lambda x: weigh(framework, x)[1], excess)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
