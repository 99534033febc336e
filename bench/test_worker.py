"""The worker: one framework a process, and peers that are missing or fail do not stop it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench import machine, runner, worker
from bench.workloads import ALL


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
