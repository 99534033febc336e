"""Explanations of TensorFlow's networks."""

from __future__ import annotations

import json
from typing import Any

import pytest

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.meta import Fuse
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from fastnet.slicer import MeanUnslicer, Slicer
from tests.network.keras_models import line, tf

pytestmark = pytest.mark.tf


class Halves(Slicer):
    """Cuts batches of four into two of two."""

    def _slice_batch(self, batch: Any) -> list[Any]:
        return [batch[:2], batch[2:]]

    def _unslice_batch(self, slices: tuple[Any, ...], key: str) -> Any:
        return tf.concat(slices, axis=0)


def network_of(*more: Any, slicers: Any = None) -> TFNetwork:
    model = fastnet.build(line, EpochScheduler({1: "sgd", 3: "adam"}), model_name="line")
    return TFNetwork(
        [
            ModelOp(model, "x", "y"),
            LambdaOp(lambda y: tf.reduce_mean(y**2), "y", "loss"),
            UpdateOp(model, "loss"),
            *more,
        ],
        slicers=slicers,
    )


def twice(inputs: str, outputs: str, **kwargs: Any) -> LambdaOp:
    return LambdaOp(lambda value: 2 * value, inputs, outputs, **kwargs)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("desired", [None, ["loss"]], ids=str)
def test_as_opened(mode: str, desired: Any) -> None:
    network = network_of(
        Fuse([twice("y", "z"), twice("z", "z")]),
        twice("y", "score", mode="eval"),
        slicers=[
            Halves(slice="x", unslice=["y", "z"]),
            Halves(unslice="score", mode="eval"),
            MeanUnslicer("loss"),
        ],
    )
    explanation = network.explain(mode, 1, "", desired)
    network(mode, 1, "", desired)
    assert [item.name for item in explanation.ops] == [type(op).__name__ for op in network.ctx_ops]
    assert explanation.inputs == network.ctx_inputs
    assert explanation.device_inputs == network.ctx_gpu_inputs
    assert set(explanation.outputs) == network.ctx_outputs
    assert not any(item.deferred for item in explanation.ops)
    batch = {"x": tf.ones((4, 2))}
    with network:
        result = network.run_step(batch)
    assert set(result) == {key.name for key in explanation.keys if key.result is not None}
    assert result["x"] is batch["x"]
    assert explanation.untouched == {"x"}
    assert json.loads(json.dumps(explanation.to_dict())) == explanation.to_dict()


@pytest.mark.filterwarnings("ignore:Steps of mode")
def test_whether_steps_are_compiled() -> None:
    def said(network: TFNetwork, mode: str = "infer") -> list[str]:
        lines = str(network.explain(mode)).splitlines()
        return [line for line in lines if line.startswith("steps ")]

    double = LambdaOp(lambda x: 2 * x, "x", "y")
    assert said(TFNetwork(double)) == []
    network = TFNetwork(double, compile=True)
    assert said(network) == ["steps are compiled at the first step"]
    with network("infer", 1):
        network.run_step({"x": tf.ones(2)})
    (line,) = said(network)
    assert line.startswith("steps are compiled, which took ")
    assert said(network, "eval") == ["steps are compiled at the first step"]
    outside = LambdaOp(lambda x: tf.py_function(abs, [x], tf.float32), "x", "y")
    network = TFNetwork(outside, compile=True)
    with network("infer", 1):
        network.run_step({"x": tf.ones(2)})
    told = network.explain("infer").compiled
    assert told == f"are not compiled: {network.traces[0].fallback}"
