"""What is made of fits in fresh processes: which steps count, and that both sides must agree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench import fits, worker
from bench.fits import Fit
from bench.workloads.fit import TF_WORKLOADS, WORKLOADS

FIT = Fit(epochs=2, steps=[900, 800, 30, 10], whole=5000, losses=[2.0, 1.0], weights=[0.5, -0.5])


def test_the_first_epoch_does_not_count() -> None:
    assert FIT.later_steps == [30, 10]
    assert (FIT.median_step, FIT.shortest_step) == (20, 10)


def test_a_figure_of_each_workload() -> None:
    for workloads in (WORKLOADS[:3], WORKLOADS[3:], TF_WORKLOADS):
        assert [workload.of(FIT) for workload in workloads] == [20, 10, 5000]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"losses": [2.0, 1.1]}, "loss of step 1: 1.1 instead of 1.0"),
        ({"losses": [2.0]}, "numbers of steps"),
        ({"losses": [2.0, float("nan")]}, "loss of step 1: nan instead of 1.0"),
        ({"weights": [0.5, -0.4]}, "weights differ"),
        ({"weights": [0.5, float("nan")]}, "weights differ"),
        ({"weights": [0.5]}, "numbers of weights"),
    ],
    ids=str,
)
def test_fits_must_come_to_the_same(other: dict[str, list[float]], told: str) -> None:
    fits.check(FIT, replace(FIT, losses=[2.0 + 1e-7, 1.0], weights=[0.5, -0.5 + 1e-7]))
    with pytest.raises(AssertionError, match=told):
        fits.check(FIT, replace(FIT, **other))


def test_ratios_are_of_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pair of processes gives one ratio."""
    theirs = [replace(FIT, whole=whole) for whole in (4000, 8000)]
    own = [replace(FIT, whole=whole) for whole in (2000, 2000)]
    monkeypatch.setattr(worker.peers.load("fastestimator"), "available", lambda: True)
    monkeypatch.setattr(fits, "in_turn", lambda *_: {"fastestimator": theirs, "fastnet": own})
    measured = worker.measure("fit_digits_whole", None, rounds=24, round_ns=1)
    assert measured.rounds == 2
    assert measured.ratios["fastnet"]["fastestimator"]["median"] == 0.375
    assert measured.times["fastestimator"]["median"] == 6000


def test_without_fastestimator_nothing_is_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.peers.load("fastestimator"), "available", lambda: False)
    measured = worker.measure("fit_digits_step", None, rounds=24, round_ns=1)
    assert measured.absent == ["fastestimator"]
    assert measured.without == ["fastnet"]
    assert not measured.times


def test_sides_that_differ_have_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def differ(*_: object) -> None:
        raise AssertionError("loss of step 3: 1 instead of 2")

    monkeypatch.setattr(worker.peers.load("fastestimator"), "available", lambda: True)
    monkeypatch.setattr(fits, "in_turn", differ)
    measured = worker.measure("fit_digits_step", None, rounds=24, round_ns=1)
    assert measured.failures == {"fastnet": "AssertionError: loss of step 3: 1 instead of 2"}
    assert not measured.ratios
