"""The worker: one framework a process, and peers that are missing or fail do not stop it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench import machine, runner, timing, worker
from bench.workloads import ALL, BY_NAME, TOGETHER


@pytest.mark.parametrize(
    ("workload", "foreign"), [("mlp_infer", "tensorflow"), ("tf_mlp_infer", "torch")]
)
def test_a_process_loads_one_framework(workload: str, foreign: str) -> None:
    # FastEstimator imports both.
    code = f"""
import sys
from bench import peers, worker
from bench.workloads import BY_NAME
names = [name for name in peers.BY_FRAMEWORK[BY_NAME[{workload!r}].framework]]
names.remove("fastestimator")
measured = worker.measure({workload!r}, names, 0, 1)
assert not measured.failures, measured.failures
assert {foreign!r} not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=runner.environment(),
        cwd=runner.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_naming_workloads_loads_no_framework() -> None:
    code = "import sys, bench.report; print({'torch', 'tensorflow', 'keras'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=runner.environment(),
        cwd=runner.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "set()"


def test_plain_steps_are_taken_off_before_calls_are() -> None:
    rounds = {
        "fastnet": (9.0, 10.0, 11.0),
        "fastnet, plain": (3.0, 2.0, 4.0),
        "bare": (5.0, 6.0, 7.0),
    }
    timings = {name: timing.Timing(1, each) for name, each in rounds.items()}
    added = worker.over_calls(timings, "fastnet", "bare")
    # round by round 1, 2 and 0; of the shortest rounds 9 - 2 - 5
    assert (added["median"], added["least"], added["step"]) == (1.0, 2.0, 5.0)
    timings["bare, plain"] = timing.Timing(1, (1.0, 1.0, 1.0))
    assert worker.over_calls(timings, "fastnet", "bare")["median"] == 2.0


def test_workloads_of_a_group_are_measured_together() -> None:
    every = [name for names in TOGETHER.values() for name in names]
    assert sorted(every) == sorted(BY_NAME)
    assert TOGETHER["mlp_train"] == ("mlp_train",)
    assert "op_argmax" in TOGETHER["op_cost"]


@pytest.mark.parametrize("framework", ["torch", "tf"])
def test_a_framework_that_is_not_installed_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, framework: str
) -> None:
    monkeypatch.setattr(machine, "has", lambda _: False)
    name = next(workload.name for workload in ALL if workload.framework == framework)
    measured = worker.measure(name, None, 1, 1)
    assert "fastnet" in measured.absent
    assert not measured.failures
    assert not measured.versions
