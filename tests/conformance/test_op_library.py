"""The op library: every op in every framework, against numpy where that is simple.

Images and volumes have their channels first in torch, and last in TensorFlow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from fastnet.op.tensorop import (
    LambdaOp,
)
from fastnet.op.tensorop.augmentation import MixUpBatch
from fastnet.op.tensorop.loss import (
    L1_Loss,
    L2Regularizaton,
    SuperLoss,
)
from tests.conformance.agreement import conforms
from tests.conformance.frameworks import Array, Framework, make_layers

SOURCE = np.random.default_rng(7)
X = SOURCE.normal(size=(4, 3)).astype("float32")
ONE_HOT = np.eye(3, dtype="float32")[[0, 2, 1, 2]]


def run(fw: Framework, op: Any, mode: str = "train", **batch: Array) -> dict[str, Any]:
    """Run an op that writes `y` (and what else begins with that) in a network."""
    result = fw.step(fw.network([op]), batch, mode, desired_output_keys=None)
    return {key: value for key, value in result.items() if key.startswith("y")}


def close(actual: Array, expected: Any, dtype: str = "float32") -> None:
    assert actual.dtype == dtype
    assert actual.shape == np.shape(expected)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


class TestLosses:
    def test_keys(self, fw: Framework) -> None:
        op = L1_Loss(["p", "t"], "y")
        assert (op.pred_key, op.true_key) == ("p", "t")
        assert (op.pred_key_idx, op.true_key_idx) == (0, 1)

    @conforms
    def test_l2_regularization(self, fw: Framework) -> Any:
        layers = make_layers(3, 4, 2)
        model = fw.build(layers)
        fw.freeze(model, 1)
        loss = np.array(1.5, dtype="float32")
        result = run(fw, L2Regularizaton("loss", "y", model=model, beta=0.5), loss=loss)
        squares = sum((weight**2).sum() for weight in layers[0])
        close(result["y"], np.float32(1.5 + 0.5 * squares / 2))
        return result

    @conforms
    def test_super_loss_follows_its_average(self, fw: Framework) -> Any:
        op = SuperLoss(L1_Loss(("p", "t"), "y"), output_confidence="y_confidence")
        ones = np.ones((2, 1), dtype="float32")
        batches = [{"p": ones * size, "t": ones * 0} for size in (1.0, 1.0, 11.0)]
        batches = [{key: one.astype("float32") for key, one in each.items()} for each in batches]
        results = fw.steps(fw.network([op]), batches, "train")
        # no excess over the average: full confidence, nothing lost
        close(results[0]["y"], np.float32(0))
        close(results[1]["y_confidence"], np.ones(2))
        # an average of 2: the excess is 9
        confidence = results[2]["y_confidence"].astype("float64")
        logs = np.log(confidence)
        assert (confidence < 0.5).all()
        close(results[2]["y"], np.float32((9 * confidence + logs**2).mean()))
        # W(4.5) exp(W(4.5)) = 4.5
        np.testing.assert_allclose(-logs * np.exp(-logs), 4.5, rtol=1e-5)
        return results


class TestMixing:
    def test_mixes_only_in_training(self, fw: Framework) -> None:
        network = fw.network(
            [
                LambdaOp(fn=lambda a: a + 1, inputs="a", outputs="a"),
                MixUpBatch(("a", "l"), ("a", "l")),
            ]
        )
        given = {"a": X, "l": ONE_HOT}
        assert (fw.step(network, given, "eval")["a"] == X + 1).all()
        assert (fw.step(network, given, "train")["a"] != X + 1).any()

    def test_draws_anew_in_each_step(self, fw: Framework) -> None:
        network = fw.network([MixUpBatch(("a", "l"), ("y", "y_label"))])
        results = fw.steps(network, [{"a": X, "l": ONE_HOT}] * 3, "train")
        assert len({one["y_label"].tobytes() for one in results}) == 3
