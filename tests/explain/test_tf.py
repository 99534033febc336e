"""Explanations of TensorFlow's networks."""

from __future__ import annotations

import pytest

from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp
from tests.network.keras_models import tf

pytestmark = pytest.mark.tf


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
