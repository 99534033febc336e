"""Loops over steps in TensorFlow that come to their loader's end, and such that are left before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.keras_models import BY_NAME, batches, mlp
from tests.network.left_loops import EPOCHS, OTHERS, run_two

pytestmark = pytest.mark.tf


def twins() -> tuple[Any, Any]:
    model, twin = (fastnet.build(mlp, lambda: BY_NAME.SGD(0.1)) for _ in range(2))
    twin.set_weights(model.get_weights())
    return model, twin


def ops_of(model: Any, rest: str) -> list[Any]:
    return [
        ModelOp(model, "x", "y"),
        CrossEntropy(("y", "t"), "loss", from_logits=True),
        UpdateOp(model, "loss", merge_grad=3, rest=rest),  # type: ignore[arg-type]
    ]


def step_by_hand(twin: Any, data: list[Any]) -> None:
    found = []
    for batch in data:
        with tf.GradientTape() as tape:
            scores = twin(batch["x"], training=True)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["t"], scores)
            loss = tf.reduce_mean(each)
        found.append(tape.gradient(loss, twin.trainable_variables))
    means = [sum(one) / len(data) for one in zip(*found, strict=True)]
    for variable, mean in zip(twin.trainable_variables, means, strict=True):
        variable.assign(variable - 0.1 * mean)


def assert_same(model: Any, twin: Any) -> None:
    for own, other in zip(model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", ["steps", "iter_transform"])
@pytest.mark.parametrize("rest", ["flush", "drop"])
class TestWhatIsMerged:
    @pytest.mark.parametrize("end", EPOCHS)
    def test_at_an_epochs_end(self, rest: str, end: str, way: str) -> None:
        model, twin = twins()
        network = TFNetwork(ops_of(model, rest))
        data = batches(4)
        run_two(network, data, way, end)
        if rest == "flush":
            step_by_hand(twin, data[:2])
        assert_same(model, twin)
        assert network.ops[2].state_dict()["merged"] == 0

    @pytest.mark.parametrize("end", OTHERS)
    def test_of_a_loop_that_is_left(self, rest: str, end: str, way: str) -> None:
        model, twin = twins()
        network = TFNetwork(ops_of(model, rest))
        data = batches(4)
        run_two(network, data, way, end)
        assert_same(model, twin)
        assert network.ops[2].state_dict()["merged"] == 2
        list(fastnet.steps(network, [data[2]], "train", 2))
        step_by_hand(twin, data[:3])
        assert_same(model, twin)
