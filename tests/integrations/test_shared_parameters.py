"""Models that share parameters: scheduled ones, tied ones, and two heads on one encoder."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.frameworks import FRAMEWORKS
from tests.conformance.test_shared_parameters import (
    CASES,
    EPOCHS,
    WAYS,
    TFModels,
    TorchModels,
    draw_batches,
    make_ops,
)
from tests.integrations.sides import WEIGHTS, Sides, assert_same, start_over
from tests.integrations.tf_sides import MARKS

pytestmark = MARKS


@pytest.mark.parametrize("way", [way for way in WAYS if way != "tf-compiled"])
@pytest.mark.parametrize("name", CASES)
def test_weights_after_each_step(sides: Sides, way: str, name: str) -> None:
    case, (framework, compiled) = CASES[name], WAYS[way]
    fw = FRAMEWORKS[framework]
    if case.deferred == (0,) and fw.target == "torch":
        pytest.skip("FastEstimator raises a KeyError")
    if case.deferred and case.merge > 1 and way == "tf-static":
        pytest.skip("FastEstimator does not defer merged gradients in a graph")

    def train(lib: Any, **settings: Any) -> Any:
        start_over()
        models: Any = TorchModels() if fw.target == "torch" else TFModels()
        network_class = getattr(lib.network, fw.network_class.__name__)
        network = network_class(make_ops(fw, models, case, lib), **settings)
        weights = []
        for epoch in EPOCHS:
            with network("train", epoch, "", eager=fw.eager):
                for x in draw_batches(epoch):
                    network.run_step({"x": fw.tensor(x)})
                    weights.append(models.values())
        return weights

    assert_same(train(sides.fastnet, compile=compiled), train(sides.fastestimator), WEIGHTS)
