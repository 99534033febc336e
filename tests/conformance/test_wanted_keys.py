"""Keys that are desired and that nothing writes."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from fastnet.op.numpyop import NumpyOp
from fastnet.op.tensorop import LambdaOp
from fastnet.slicer import AxisSlicer
from tests.conformance.frameworks import Framework


@pytest.mark.parametrize("sliced", [False, True])
def test_they_are_missing_from_the_result(fw: Framework, sliced: bool) -> None:
    network = fw.network(
        [LambdaOp(lambda x: x * 1, "x", "y"), LambdaOp(lambda x: x * 1, "x", "w", mode="eval")],
        NumpyOp("y", "z"),
        slicers=AxisSlicer(0, "x", ["x", "y"]) if sliced else None,
    )
    batch = fw.tensors({"x": np.ones((2, 3), dtype="float32")})
    with fw.opened(network, desired_output_keys=["yy", "y", "w"]):
        assert set(network.run_step(batch)) == {"x", "y", "z"}
    assert any(
        finding.keys == ("yy",) for finding in network.explain("train", 1, "", ["yy"]).findings
    )
