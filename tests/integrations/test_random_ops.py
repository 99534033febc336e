"""Ops that draw, beside FastEstimator's.

In torch both draw alike from the same seed (see test_op_library.py), and for
arrays both draw from numpy's generator (test_numpyops.py). In TensorFlow FastEstimator draws by way
of TensorFlow Probability, other numbers from the same seed: there the distributions are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.integrations import tf_sides
from tests.integrations.sides import Sides
from tests.integrations.test_op_library import tensorops
from tests.integrations.tf_sides import MARKS, tf
from tests.integrations.torchvision_stand_in import complete_fastestimator

pytestmark = MARKS

# Draws so far apart come from one distribution once in a million pairs of seeds.
RARE = 1e-6


@pytest.fixture(scope="module", autouse=True)
def _whole_fastestimator() -> Iterator[None]:
    with complete_fastestimator():
        yield


EAGER = pytest.mark.parametrize("eager", [False, True], ids=["static", "eager"])


def check_alike(expected: np.ndarray, actual: np.ndarray) -> None:
    """Check by the test of Kolmogorov and Smirnov that two draws are from one distribution."""
    draws = [np.sort(np.ravel(found).astype("float64")) for found in (expected, actual)]
    places = np.concatenate(draws)
    shares = [np.searchsorted(one, places, side="right") / one.size for one in draws]
    bound = math.sqrt(-math.log(RARE / 2) / 2 * sum(1 / one.size for one in draws))
    assert np.abs(shares[0] - shares[1]).max() < bound


def alike(sides: Sides, program: Callable[[Any], Any]) -> tuple[np.ndarray, np.ndarray]:
    """Check that a program draws from one distribution in both packages, and give the draws."""
    expected, actual = tf_sides.run(sides, program, seed=3)
    check_alike(expected, actual)
    return expected, actual


def drawn(
    lib: Any, ops: list[Any], batch: dict[str, Any], keys: list[str], steps: int, eager: bool
) -> list[np.ndarray]:
    results = tf_sides.steps(lib.network.TFNetwork(ops), [batch] * steps, eager=eager)
    return [np.stack([np.asarray(result[key]) for result in results]) for key in keys]


def add(lib: Any, number: float) -> Any:
    return lib.op.tensorop.LambdaOp(lambda x: x + number, "x", "x")


def within(values: np.ndarray, mean: float, variance: float) -> None:
    """Check a mean, to five of its standard deviations."""
    assert abs(values.mean() - mean) < 5 * math.sqrt(variance / values.size)


@EAGER
def test_sometimes(sides: Sides, eager: bool) -> None:
    """How often of 6 times, each drawn for itself."""

    def program(lib: Any) -> Any:
        ops = [lib.op.tensorop.meta.Sometimes(add(lib, 1), 0.3) for _ in range(6)]
        return drawn(lib, ops, {"x": tf.zeros(1)}, ["x"], 50 if eager else 250, eager)[0]

    for found in alike(sides, program):
        within(found, 6 * 0.3, 6 * 0.3 * 0.7)


def test_sometimes_over_and_over(sides: Sides) -> None:
    """In a graph FastEstimator cannot, as a loop of TensorFlow's has no Python to choose with."""

    def program(lib: Any) -> Any:
        meta = lib.op.tensorop.meta
        op = meta.Repeat(meta.Sometimes(add(lib, 1), 0.3), 25)
        return drawn(lib, [op], {"x": tf.zeros(1)}, ["x"], 200, eager=False)[0]

    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        program(sides.fastestimator)
    tf_sides.start_over(3)
    within(program(sides.fastnet), 25 * 0.3, 25 * 0.3 * 0.7)


@EAGER
def test_one_of_draws_the_same(sides: Sides, eager: bool) -> None:
    """By itself it draws as FastEstimator's does, from TensorFlow's own generator."""

    def program(lib: Any) -> Any:
        op = lib.op.tensorop.meta.OneOf(add(lib, 1), add(lib, 2), probs=[0.3, 0.7])
        return drawn(lib, [op], {"x": tf.zeros(1)}, ["x"], 30, eager)

    expected, actual = tf_sides.run(sides, program, seed=3)
    np.testing.assert_array_equal(actual, expected)


def test_repeat_while_a_drawn_sum_is_small_in_torch(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        draw = lib.op.tensorop.LambdaOp(lambda x: x + torch.rand(1), "x", "x")
        op = lib.op.tensorop.meta.Repeat(draw, lambda x: x.sum() < 3)
        with lib.network.TorchNetwork([op])("train", 1, "") as network:
            return [network.run_step({"x": torch.zeros(1)})["x"] for _ in range(30)]

    sides.agree(program)


@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_mixup(sides: Sides, alpha: float) -> None:
    """What part of each of 3,000 samples is its own, told by values that take turns."""
    turns = tf.constant(np.arange(1500)[:, None] % 2, tf.float32)

    def program(lib: Any, key: str) -> Any:
        op = tensorops(lib).augmentation.mixup_batch.MixUpBatch(("x", "l"), ("x", "l"), alpha=alpha)
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
        op = tensorops(lib).augmentation.cutmix_batch.CutMixBatch(("x", "l"), ("x", "l"))
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

    expected, actual = tf_sides.run(sides, program, seed=3)
    for part in expected:
        check_alike(expected[part], actual[part])


@pytest.mark.parametrize("probs", [None, [0.3, 0.7]])
def test_choices_in_torch(sides: Sides, probs: Any) -> None:
    def program(lib: Any) -> Any:
        meta = lib.op.tensorop.meta
        ops = [
            meta.Sometimes(add(lib, 1), 0.4),
            meta.OneOf(add(lib, 10), add(lib, 20), probs=probs),
        ]
        return tf_sides.steps(lib.network.TorchNetwork(ops), [{"x": torch.zeros(1)}] * 40)

    sides.agree(program)
