"""The API of FastEstimator 1.0 to 1.5, in torch and TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from fastnet.compat import v1
from fastnet.op import numpyop
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from tests.conformance.frameworks import FRAMEWORKS, Framework

pytestmark = pytest.mark.tf

LINE = [(np.float32([[3.0]]), np.float32([0.0]))]


@pytest.fixture(params=["torch", "tf-static"])
def side(request: pytest.FixtureRequest) -> Framework:
    return FRAMEWORKS[request.param]


def class_of(side: Framework) -> Any:
    return v1.TorchNetwork if side.target == "torch" else v1.TFNetwork


def simple(side: Framework, **rest: Any) -> Any:
    return class_of(side)(
        [
            LambdaOp(lambda x: x * 2, "x", "y"),
            LambdaOp(lambda y, w: y + w, ["y", "w"], "z", mode="train"),
        ],
        **rest,
    )


def values(found: Any) -> Any:
    return {key: np.asarray(value).tolist() for key, value in found.items()}


class TestSteps:
    @pytest.mark.parametrize("eager", [False, True])
    def test_batch_and_prediction_come_apart(self, side: Framework, eager: bool) -> None:
        network = simple(side)
        given = {"x": side.tensor([1, 2]), "w": side.tensor([5, 6]), "kept": "a"}
        network.load_epoch("train", 1, eager=eager)
        for _ in range(2):
            batch, prediction = network.run_step(given)
            assert batch is given
            assert values(prediction) == {"y": [2, 4], "z": [7, 10]}
        network.unload_epoch()
        assert set(given) == {"x", "w", "kept"}

    @pytest.mark.parametrize(
        ("args", "rest", "keys", "warmup"),
        [
            (("train", 1, {"z"}, True), {}, {"z"}, True),
            (("train", 1, "a"), {}, {"y", "z"}, False),
            (("train", 1, "a", {"y"}, True, True), {}, {"y"}, True),
            (("train", 1), {"output_keys": {"y"}, "warmup": True}, {"y"}, True),
            (("train", 1, None, {"y"}), {}, {"y"}, False),
            (("train", 1, None, True), {}, {"y", "z"}, True),
            (("train", 1, ""), {}, {"y", "z"}, False),
        ],
    )
    def test_both_forms_of_loading(
        self, side: Framework, args: Any, rest: Any, keys: set[str], warmup: bool
    ) -> None:
        network = simple(side)
        network.load_epoch(*args, **rest)
        assert network.epoch_state["warmup"] is warmup
        assert network.epoch_state["mode"] == "train"
        _, prediction = network.run_step({"x": side.tensor([1]), "w": side.tensor([5])})
        assert set(prediction) == keys == network.effective_outputs["train"]
        network.unload_epoch()

    def test_loading_again_unloads(self, side: Framework) -> None:
        network = simple(side)
        network.unload_epoch()
        network.load_epoch("train", 1)
        network.load_epoch("eval", 2)
        _, prediction = network.run_step({"x": side.tensor([1])})
        assert values(prediction) == {"y": [2]}
        network.unload_epoch()
        network.unload_epoch()
        with pytest.raises(ValueError, match=rf"load_epoch.*{type(network).__name__}"):
            network.run_step({"x": side.tensor([1])})

    def test_postprocessing(self, side: Framework) -> None:
        pops = [numpyop.LambdaOp(lambda y: y + 1, "y", "p")]
        network = simple(side, postprocessing=pops)
        network.load_epoch("eval", 1)
        batch, prediction = network.run_step({"x": side.tensor([1])})
        assert set(batch) == {"x"}
        assert values(prediction) == {"y": [2], "p": [3]}
        assert network.epoch_postprocessing == pops
        # what it reads and makes comes back even if it was not asked for
        network.load_epoch("train", 1, output_keys={"z"})
        _, prediction = network.run_step({"x": side.tensor([1]), "w": side.tensor([1])})
        assert values(prediction) == {"y": [2], "z": [3], "p": [3]}
        network.unload_epoch()

    def test_transform_loads_and_unloads(self, side: Framework) -> None:
        network = simple(side)
        network.load_epoch("train", 1)
        for _ in range(2):
            found = network.transform({"x": side.tensor([1, 2])}, "eval", 3, "a")
            assert values(found) == {"x": [1, 2], "y": [2, 4]}
        assert network.epoch_state["mode"] == "eval"
        assert set(network.effective_inputs) == {"train", "eval"}
        with pytest.raises(ValueError, match="needs a loaded epoch"):
            network.run_step({"x": side.tensor([1])})


class TestTraining:
    def test_a_model(self, side: Framework) -> None:
        model = v1.build(lambda: side.make_model(LINE), "sgd", model_name="line")
        network = v1.Network(
            [
                ModelOp(model, "x", "y"),
                MeanSquaredError(("y", "t"), "loss"),
                UpdateOp(model, "loss"),
            ]
        )
        assert isinstance(network, class_of(side))
        data = {"x": side.tensor([1.0])[None], "t": side.tensor([1.0])[None]}
        network.load_epoch("train", 1)
        assert network.epoch_models == {model}
        assert network.get_loss_keys() == {"loss"}
        _, prediction = network.run_step(data)
        assert values(prediction)["loss"] == 4
        network.unload_epoch()
        rate = side.weights(model)[0]
        # the gradient is 4, times the rate by default
        assert rate < 3
        network.load_epoch("train", 1, warmup=True)
        network.run_step(data)
        network.unload_epoch()
        assert side.weights(model)[0] == rate


class TestAttributes:
    def test_keys_and_ops(self, side: Framework) -> None:
        late = LambdaOp(lambda z: z, "z", "late", mode="train")
        network = class_of(side)(
            [
                LambdaOp(lambda x: x * 2, "x", "y"),
                LambdaOp(lambda y, w: y + w, ["y", "w"], "z", mode="train"),
                EpochScheduler({1: None, 2: late}),
            ],
            [numpyop.LambdaOp(lambda y, q: y, ["y", "q"], "p", mode="eval")],
        )
        assert network.get_effective_input_keys("train", 1) == {"x", "w"}
        assert network.get_effective_input_keys("eval", 1) == {"x", "q"}
        assert network.get_all_output_keys("train", 1) == {"y", "z"}
        assert network.get_all_output_keys("train", 2) == {"y", "z", "late"}
        assert network.get_all_output_keys("eval", 2, "a") == {"y", "p"}
        assert network.get_loss_keys() == set()
        assert network.effective_inputs == network.effective_outputs == {}
        network.load_epoch("train", 2)
        assert [op.outputs for op in network.epoch_ops] == [["y"], ["z"], ["late"]]
        assert network.epoch_ops[-1] is late
        assert network.epoch_state["epoch"] == 2
        network.unload_epoch()
        network.load_epoch("eval", 2)
        network.unload_epoch()
        # what was loaded last stays to be read
        assert [op.outputs for op in network.epoch_ops] == [["y"]]
        assert [op.outputs for op in network.epoch_postprocessing] == [["p"]]
        assert network.epoch_models == set()
        assert network.effective_inputs == {"train": {"x", "w"}, "eval": {"x", "q"}}
        assert network.effective_outputs == {"train": {"y", "z", "late"}, "eval": {"y", "p"}}

    def test_scheduled_items(self, side: Framework) -> None:
        model = v1.build(lambda: side.make_model(LINE), "sgd", model_name="line")
        ops = [ModelOp(model, "x", "y"), LambdaOp(lambda y: y, "y", "z", mode="train")]
        pop = numpyop.LambdaOp(lambda z: z, "z", "p")
        network = class_of(side)(ops, pop)
        assert network.get_scheduled_items("train") == [*ops, model.optimizer, pop]
        assert network.get_scheduled_items("eval") == [*ops, pop]


def test_other_names() -> None:
    with pytest.raises(AttributeError, match=r"'fastnet\.compat\.v1' has no attribute 'Other'"):
        v1.Other  # type: ignore[attr-defined]  # noqa: B018
    assert v1.TorchNetwork is v1.TorchNetwork
    assert issubclass(v1.TFNetwork, v1.BaseNetwork)
