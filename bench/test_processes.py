"""Functions in processes of their own: results, failures, and measurements of several processes."""

from __future__ import annotations

import sys

import pytest

from bench import fits, machine, processes, ranks

needs_torch = pytest.mark.skipif(not machine.has("torch"), reason="torch is not installed")
needs_tf = pytest.mark.skipif(not machine.has("tf"), reason="TensorFlow is not installed")


def loaded_modules(name: str) -> list[str]:
    """Measure a workload in this process, and return the modules that it has loaded."""
    from bench import measure, peers

    # FastEstimator imports both frameworks.
    names = [one for one in peers.PEERS if one != "fastestimator"]
    (found,) = measure.measure([name], names, 0, 1.0)
    assert not found["failures"], found["failures"]
    return sorted(sys.modules)


@needs_torch
@needs_tf
@pytest.mark.parametrize(
    ("workload", "foreign"), [("mlp_infer", "tensorflow"), ("tf_mlp_infer", "torch")]
)
def test_a_process_loads_one_framework(workload: str, foreign: str) -> None:
    loaded = processes.call("bench.test_processes:loaded_modules", workload)
    assert foreign not in loaded


def test_a_report_is_shown_without_a_framework() -> None:
    code = "import sys, bench.report; print({'torch', 'tensorflow', 'keras'} & set(sys.modules))"
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", code], env=processes.environment(), capture_output=True, text=True
    )
    assert done.stdout.strip() == "set()", done.stderr


def test_a_process_that_fails_is_reported() -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'nowhere'"):
        processes.call("bench.measure:measure", ["nowhere"], None, 0, 1.0)
    with pytest.raises(RuntimeError, match="nowhere"):
        processes.call_ranks("bench.ranks:nowhere", ranks=2)


@needs_torch
@pytest.mark.parametrize("engine", list(ranks.PEERS))
def test_peers_that_train_together_agree(engine: str) -> None:
    lines = ranks.measure("mlp_train", engine, 2, 2, 1, list(ranks.PEERS[engine]))
    assert [line.peer for line in lines][:2] == ["hand-written loop", "fastnet"]
    assert ranks.disagreements(lines) == []
    assert all(line.collectives and line.microseconds > 0 for line in lines)


@pytest.mark.parametrize(
    ("losses", "weights"),
    [([2.0, 1.1], [0.5]), ([2.0], [0.5]), ([2.0, 1.0], [0.6]), ([2.0, 1.0], [float("nan")])],
)
def test_fits_must_agree(losses: list[float], weights: list[float]) -> None:
    expected = fits.Fit([900, 800, 30, 10], 5000, [2.0, 1.0], [0.5], epochs=2)
    assert (expected.median_step, expected.shortest_step) == (20, 10)
    fits.check(expected, expected)
    with pytest.raises(AssertionError):
        fits.check(expected, fits.Fit(expected.steps, 5000, losses, weights, epochs=2))
