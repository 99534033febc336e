"""FastEstimator in its own interpreter: the same checks as for the peers that are installed here.

Set `FASTNET_BENCH_FE_PYTHON` to an interpreter that has FastEstimator.
"""

from __future__ import annotations

import os

import pytest

from bench import runner
from bench.report import FE_PYTHON
from bench.workloads import TOGETHER

# Each of these starts an interpreter that imports TensorFlow, so one workload of each kind must do.
_WORKLOADS = (
    "identity_50",
    "mlp_train",
    "mlp_infer",
    "open_again",
    "nest_detach",
    "slicing_16",
    "op_cost",
    "grow_fuse",
    "grow_keys",
    "tf_grow_ops",
    "tf_mlp_train",
    "tf_open_epoch",
    "tf_traces_train",
    "fit_digits",
    "tf_fit_digits",
)


@pytest.mark.parametrize("workload", _WORKLOADS)
def test_agrees_with_the_bare_loop(workload: str) -> None:
    python = os.environ.get(FE_PYTHON)
    if not python:
        pytest.skip(f"${FE_PYTHON} names no interpreter")
    every = runner.run(python, TOGETHER[workload], runner.Settings(rounds=0), ["fastestimator"])
    for measured in every:
        assert "fastestimator" not in measured.absent
        assert not measured.failures
