"""FastEstimator in its own interpreter: the same checks as for the peers that are installed here.

Set `FASTNET_BENCH_FE_PYTHON` to an interpreter that has FastEstimator.
"""

from __future__ import annotations

import os

import pytest

from bench import processes
from bench.report import FE_PYTHON
from bench.workloads import TOGETHER

# Each starts an interpreter that imports TensorFlow, so there is one workload of each kind.
_WORKLOADS = (
    *("identity_50", "mlp_train", "mlp_infer", "open_again", "nest_detach", "slicing_16"),
    *("op_cost", "grow_keys", "tf_grow_ops", "tf_mlp_train", "tf_open_epoch"),
    *("fit_digits", "tf_fit_digits"),
)


@pytest.mark.parametrize("workload", _WORKLOADS)
def test_agrees_with_the_hand_written_loop(workload: str) -> None:
    python = os.environ.get(FE_PYTHON)
    if not python:
        pytest.skip(f"${FE_PYTHON} names no interpreter")
    arguments = (TOGETHER[workload], ["fastestimator"], 0, 1.0)
    for measured in processes.call("bench.measure:measure", *arguments, python=python):
        assert "fastestimator" not in measured["absent"]
        assert not measured["failures"]
