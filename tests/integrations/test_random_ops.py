"""Ops that draw, beside FastEstimator's.

In torch both draw the same from the same seed (see test_ops.py too), and for arrays both draw from
numpy's generator (test_numpyops.py). In TensorFlow FastEstimator draws by way
of TensorFlow Probability, other numbers from the same seed: there the distributions are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.integrations.sides import Sides, steps
from tests.integrations.tf_sides import MARKS, tf

pytestmark = MARKS

# Draws so far apart come from one distribution once in a million pairs of seeds.
RARE = 1e-6


def check_alike(expected: np.ndarray, actual: np.ndarray) -> None:
    """Check by the test of Kolmogorov and Smirnov that two draws are from one distribution."""
    draws = [np.sort(np.ravel(found).astype("float64")) for found in (expected, actual)]
    places = np.concatenate(draws)
    shares = [np.searchsorted(one, places, side="right") / one.size for one in draws]
    bound = math.sqrt(-math.log(RARE / 2) / 2 * sum(1 / one.size for one in draws))
    assert np.abs(shares[0] - shares[1]).max() < bound


def alike(sides: Sides, program: Callable[[Any], Any]) -> tuple[np.ndarray, np.ndarray]:
    """Check that a program draws from one distribution in both packages, and give the draws."""
    expected, actual = sides.run(program, seed=3)
    check_alike(expected, actual)
    return expected, actual


def drawn(
    lib: Any, ops: list[Any], batch: dict[str, Any], keys: list[str], count: int, eager: bool
) -> list[np.ndarray]:
    results = steps(lib.network.TFNetwork(ops), [batch] * count, eager=eager)
    return [np.stack([np.asarray(result[key]) for result in results]) for key in keys]


def add(lib: Any, number: float) -> Any:
    return lib.op.tensorop.LambdaOp(lambda x: x + number, "x", "x")


def within(values: np.ndarray, mean: float, variance: float) -> None:
    """Check a mean, to five of its standard deviations."""
    assert abs(values.mean() - mean) < 5 * math.sqrt(variance / values.size)


@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_mixup(sides: Sides, alpha: float) -> None:
    """What part of each of 3,000 samples is its own, told by values that take turns."""
    turns = tf.constant(np.arange(1500)[:, None] % 2, tf.float32)

    def program(lib: Any, key: str) -> Any:
        op = lib.op.tensorop.augmentation.MixUpBatch(("x", "l"), ("x", "l"), alpha=alpha)
        (mixed,) = drawn(lib, [op], {"x": turns, "l": turns}, [key], 2, eager=False)
        return np.where(turns == 1, mixed, 1 - mixed)

    # of the beta distribution with both parameters alpha
    for found in alike(sides, lambda lib: program(lib, "l")):
        within(found, 0.5, 1 / (4 * (2 * alpha + 1)))
    for found in alike(sides, lambda lib: program(lib, "x")):
        assert found.min() >= 0.5 - 1e-6


def test_cutmix(sides: Sides) -> None:
    """How large the boxes are, where they lie, and what labels say of them."""
    images = tf.constant(np.arange(2)[:, None, None, None] * np.ones((1, 16, 12, 1)), tf.float32)
    labels = tf.constant([[0.0], [1.0]])

    def program(lib: Any) -> Any:
        op = lib.op.tensorop.augmentation.CutMixBatch(("x", "l"), ("x", "l"))
        batch = {"x": images, "l": labels}
        x, label = drawn(lib, [op], batch, ["x", "l"], 250, eager=False)
        box = x[:, 0, ..., 0]
        # what labels say is what there is to see
        np.testing.assert_allclose(label[:, 0, 0], box.mean(axis=(1, 2)), atol=1e-6)
        rows, columns = box.any(axis=2), box.any(axis=1)
        return {
            "area": box.sum(axis=(1, 2)),
            "height": rows.sum(axis=1),
            "width": columns.sum(axis=1),
            "top": rows.argmax(axis=1),
            "left": columns.argmax(axis=1),
        }

    expected, actual = sides.run(program, seed=3)
    for part in expected:
        check_alike(expected[part], actual[part])


@pytest.mark.parametrize("probs", [None, [0.3, 0.7]])
def test_draws_are_the_same(sides: Sides, fw: Any, probs: Any) -> None:
    """In torch, and where TensorFlow's own generator draws."""

    def program(lib: Any) -> Any:
        meta = lib.op.tensorop.meta
        draw = lib.op.tensorop.LambdaOp(lambda x: x + torch.rand(1), "x", "x")
        ops = [
            meta.Sometimes(add(lib, 1), 0.4),
            meta.Repeat(draw, lambda x: x.sum() < 3),
            meta.OneOf(add(lib, 10), add(lib, 20), probs=probs),
        ]
        network = fw.network_class(lib)(ops if fw.NAME == "torch" else ops[-1:])
        batches = [{"x": fw.tensor([0.0])}] * 30
        return [steps(network, batches, eager=eager) for eager in (True, False)]

    sides.agree(program)
