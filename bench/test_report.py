"""The report's rows, verdicts and tables, from measurements that are made up."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from bench import plot, tables
from bench.results import Report, from_json, rows
from bench.worker import Measured


def _measured(workload: str, times: dict[str, float], references: tuple[str, ...]) -> Measured:
    return Measured(
        workload=workload,
        versions={"python": "3.12.0", "torch": "2.9.0"},
        rounds=3,
        times={
            peer: {"median": time, "low": time, "high": time, "loops": 1}
            for peer, time in times.items()
        },
        ratios={
            peer: {
                reference: dict.fromkeys(("median", "low", "high"), time / times[reference])
                for reference in references
                if reference in times
            }
            for peer, time in times.items()
        },
    )


@pytest.fixture
def report() -> Report:
    """A goal met, a goal missed, one against FastEstimator, and a count."""
    train = {"bare": 1000.0, "fastnet": 1040.0, "tensordict": 1370.0}
    infer = {"bare": 1000.0, "fastnet": 1200.0}
    opened = {"fastestimator": 1e6, "fastnet": 5e3}
    live = Measured("live_40", counts={"bare": 2, "fastnet": 2, "tensordict": 40})
    return Report(
        made="2000-01-01T00:00+00:00",
        processor="a processor",
        rounds=3,
        round_ms=1.0,
        environments={
            "main": [
                _measured("mlp_train", train, ("bare",)),
                _measured("mlp_infer", infer, ("bare",)),
                _measured("open_again", {"fastnet": 5e3}, ("fastestimator",)),
                live,
            ],
            "FastEstimator's": [
                _measured("mlp_train", {"bare": 1000.0, "fastestimator": 2500.0}, ("bare",)),
                _measured("open_again", opened, ("fastestimator",)),
            ],
        },
    )


def test_verdicts_are_those_of_the_goals(report: Report) -> None:
    verdicts = {row.workload: row.verdict for row in rows(report)}
    assert verdicts == {
        "mlp_train": "met",
        "mlp_infer": "MISSED",
        "open_again": "met",
        "live_40": "met",
    }


def test_a_ratio_comes_from_one_process(report: Report) -> None:
    train, _, opened, _ = rows(report)
    assert train.cells["fastestimator"].value == 2.5
    assert train.cells["fastestimator"].environment == "FastEstimator's"
    assert train.cells["fastnet"].environment == "main"
    assert opened.cells["fastnet"].value == pytest.approx(0.005)


def test_nothing_is_judged_without_its_reference(report: Report) -> None:
    del report.environments["FastEstimator's"]
    assert {row.workload: row.verdict for row in rows(report)}["open_again"] == "not measured"


def test_markdown_names_versions_verdicts_and_failures(report: Report) -> None:
    report.environments["main"][0].failures["ignite"] = "RuntimeError: no"
    text = tables.to_markdown(report)
    assert "torch 2.9.0" in text
    assert "| MLP train step | bare loop | 1 | 1.04 | 1.04 | 1.04 to 1.04 | 1.05 | met |" in text
    assert "| 1.10 | MISSED |" in text.replace("| 1.1 |", "| 1.10 |")
    assert "FAILED: Ignite at mlp_train (main): RuntimeError: no" in text


def test_a_saved_report_is_read_back(report: Report) -> None:
    assert from_json(json.loads(json.dumps(asdict(report)))) == report


def test_the_plot_is_a_picture(report: Report, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plots" / "report.png"
    plot.draw(report, path)
    assert path.read_bytes().startswith(b"\x89PNG")
