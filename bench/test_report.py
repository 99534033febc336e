"""The rows, tables and plots of a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import processes, report, tables
from bench.measure import Measured
from bench.results import Report, sections


def _spread(value: float) -> dict[str, float]:
    return {"median": value, "low": 0.9 * value, "high": 1.1 * value}


def _measured(workload: str, reference: str, **times: float) -> Measured:
    return Measured(
        workload,
        {"torch": "2.9.0", "tensorflow-cpu": "2.21.0", "keras": "3.15.1"},
        times={peer: {**_spread(time), "loops": 1} for peer, time in times.items()},
        ratios={
            peer: {reference: _spread(time / times[reference])} for peer, time in times.items()
        },
    )


@pytest.fixture
def made() -> Report:
    """A goal that is met, missed or close, an excess, a count, growth, and a failure."""
    opened = Measured("tf_open_epoch", times={"fastnet": {**_spread(3e5), "loops": 1}})
    opened.excesses["fastnet"] = {**_spread(2e5), "step": 1e5}
    op = Measured("op_argmax", times={"fastnet": {**_spread(6e3), "loops": 1}})
    op.excesses["fastnet"] = {**_spread(1.9e3), "least": 1240.0, "step": 3100.0}
    slow = _measured("mlp_train", "bare", bare=2000.0, fastestimator=5000.0)
    failed = Measured("slicing_16", failures={"fastnet": "RuntimeError: no"})
    return Report(
        "2000-01-01T00:00+00:00",
        "a processor",
        3,
        1.0,
        {
            "main": [
                _measured("mlp_train", "bare", bare=1000.0, fastnet=1040.0),
                _measured("mlp_infer", "bare", bare=1000.0, fastnet=1500.0),
                _measured("tf_mlp_train", "tf_concrete", tf_concrete=1e5, fastnet=4e4),
                Measured("live_40", counts={"bare": 2, "fastnet": 2}),
                *[
                    _measured(f"ops_{n}", "bare", bare=900.0 + 10 * n, fastnet=500.0)
                    for n in (1, 10)
                ],
                opened,
                op,
                failed,
            ],
            "FastEstimator's": [slow],
        },
    )


def test_values_and_verdicts(made: Report) -> None:
    torch, tf = sections(made)
    assert tf.title == "TensorFlow 2.21.0, Keras 3.15.1"
    measured = [row for row in torch.rows + torch.costs + tf.rows[2:] if row.cells]
    rows = {row.workload.name: row for row in measured}
    verdicts = {name: row.verdict for name, row in rows.items()}
    assert [row.verdict for row in tf.rows[:2]] == ["met", "not measured"]
    assert verdicts == {
        "mlp_train": "met, close",
        "mlp_infer": "missed",
        "live_40": "met",
        "op_argmax": "met, close",
        "tf_open_epoch": "met",
    }
    # A ratio is of one process.
    assert rows["mlp_train"].cells["fastestimator"].value == 2.5
    assert rows["tf_open_epoch"].cells["fastnet"].value == pytest.approx(0.2)
    (group,) = torch.growth
    assert group.times_ns("fastnet") == pytest.approx({1: 500.0, 10: 500.0})


def test_tables_name_the_baseline_in_full(made: Report) -> None:
    text = tables.to_markdown(made)
    assert "| MLP train step | hand-written loop | 1 | 1.04 | 1.04 | 0.94 to 1.14 | 1.05 |" in text
    assert "| Argmax | 3.1 | 6 | 1.2 | 1.7 to 2.1 | 2 | met, close | - |" in text
    assert "| ops | hand-written loop, µs | fastnet |" in text
    assert "| one more, µs | 0.01 | " in text
    assert "- failed: fastnet at slicing_16 (main): RuntimeError: no" in text


def test_a_report_is_saved_with_its_plots(
    made: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "made.json"
    path.write_text(json.dumps(made.to_json()))
    assert report.main(["--from-json", str(path), "--save", str(tmp_path), "--name", "made"]) == 1
    assert Report.from_json(json.loads(path.read_text())) == made
    assert {one.name for one in tmp_path.iterdir()} == {
        *["made.json", "made.md", "made.png", "made_step.png", "made_ops.png"]
    }


def test_a_group_is_measured_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def call(function: str, names: list[str], *_: object, **settings: object) -> list[object]:
        asked.append(names)
        return []

    monkeypatch.setattr(processes, "call", call)
    monkeypatch.delenv(report.FE_PYTHON, raising=False)
    assert report.main(["--workloads", "grow_ops", "mlp_train"]) == 0
    assert [len(names) for names in asked] == [10, 1]
