"""Models that share parameters train as in FastEstimator."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.shared_parameters import (
    CASES,
    EPOCHS,
    Case,
    TFModels,
    TorchModels,
    draw_batches,
    make_ops,
)
from tests.integrations.sides import Sides


def is_defect(case: Case, way: str) -> bool:
    """Return whether FastEstimator fails in a case.

    In torch, an immediate update raises a KeyError while another model's update is deferred. In a
    TensorFlow graph, an update cannot be both merged and deferred.
    """
    if way == "tf-static":
        return case.merge > 1 and case.defer != "none"
    return way == "torch" and case.defer == "first"


@pytest.mark.parametrize(
    ("fw", "way", "case"),
    [
        pytest.param(way.partition("-")[0], way, case, id=f"{way}-{case}")
        for way in ("torch", "tf-static", "tf-eager")
        for case in CASES
        if not is_defect(case, way)
    ],
    indirect=["fw"],
)
def test_weights_after_each_step(sides: Sides, fw: Any, way: str, case: Case) -> None:
    def program(lib: Any) -> Any:
        models: Any = TorchModels() if fw.NAME == "torch" else TFModels()
        network = fw.network_class(lib)(make_ops(lib, fw.mean, models, case))
        weights = []
        for epoch in EPOCHS:
            with network("train", epoch, "", eager=way == "tf-eager"):
                for x in draw_batches(epoch):
                    network.run_step({"x": fw.tensor(x)})
                    weights.append(models.values())
        return weights

    fw.agree(sides, program)
