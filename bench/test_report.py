"""The report's rows, verdicts and tables, from measurements that are made up."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from bench import plot, tables
from bench.results import Report, from_json, rows, sections
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


@pytest.fixture
def in_tensorflow() -> Report:
    """Two environments with TensorFlow, the second of another generation and with FastEstimator."""

    def environment(number: str, keras: str, **more: float) -> list[Measured]:
        times = {"tf_concrete": 1e5, "fastnet": 9e4, "tf_function": 2e5, **more}
        train = _measured("tf_mlp_train", times, ("tf_concrete", "tf_concrete_any"))
        opened = _measured("tf_open_epoch", {"fastnet": 3e5}, ())
        opened.excesses["fastnet"] = {"median": 2e5, "low": 1e5, "high": 3e5, "step": 1e5}
        traces = Measured("tf_traces_train", counts={"tf_concrete": 5, "fastnet": 3})
        for measured in (train, opened, traces):
            measured.versions = {"tensorflow-cpu": number, "keras": keras}
        return [train, opened, traces]

    torch = Measured("tf_mlp_train", absent=["tf_concrete", "fastnet", "tf_function"])
    return Report(
        made="2000-01-01T00:00+00:00",
        processor="a processor",
        rounds=3,
        round_ms=1.0,
        environments={
            "main": environment("2.21.0", "3.15.1"),
            "FastEstimator's": environment("2.15.1", "2.15.0", fastestimator=4e5),
            "only torch": [torch],
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


def test_each_tensorflow_has_rows_of_its_own(in_tensorflow: Report) -> None:
    newest, old = sections(in_tensorflow)
    assert newest.title == "TensorFlow 2.21.0, Keras 3.15.1"
    assert old.title == "TensorFlow 2.15.1, Keras 2.15.0"
    assert [set(row.cells) for row in (newest.rows[0], old.rows[0])] == [
        {"tf_concrete", "fastnet", "tf_function"},
        {"tf_concrete", "fastnet", "tf_function", "fastestimator"},
    ]
    assert newest.rows[0].cells["fastnet"].environment == "main"
    assert old.rows[0].cells["fastnet"].environment == "FastEstimator's"


def test_milliseconds_over_a_step_and_counts_are_judged(in_tensorflow: Report) -> None:
    rows_of = {row.workload: row for row in sections(in_tensorflow)[0].rows}
    opened = rows_of["tf_open_epoch"]
    assert (opened.unit, opened.verdict) == ("ms", "met")
    assert opened.cells["fastnet"].value == pytest.approx(0.2)
    assert opened.cells["fastnet"].reference_ns == 1e5
    assert rows_of["tf_traces_train"].verdict == "MISSED"
    text = tables.to_markdown(in_tensorflow)
    row = "| Open the next epoch, first step | a plain step | 100 | 300 | 0.20 ms | 0.10 to 0.30 |"
    assert f"{row} 1 | met |" in text
    assert "| Traces of train, 10 epochs | count | 5 | 3 | - | 2 |" in text


def test_what_an_op_adds_stands_in_a_table_of_its_own(report: Report) -> None:
    added = {"median": 2500.0, "low": -100.0, "high": 9000.0, "least": 1240.0, "step": 3100.0}
    measured = Measured("op_argmax", versions={"torch": "2.9.0"})
    for peer, more in (("fastnet", 0.0), ("fastestimator", 20000.0)):
        measured.times[peer] = {"median": 6000.0, "low": 5e3, "high": 7e3, "loops": 1}
        measured.excesses[peer] = {**added, "least": added["least"] + more}
    measured.excesses["bare"] = dict.fromkeys(added, 0.0)
    measured.times["bare"] = measured.times["fastnet"]
    report.environments["main"].append(measured)
    (section,) = sections(report)
    assert [row.workload for row in section.costs] == ["op_argmax"]
    assert "op_argmax" not in [row.workload for row in section.rows]
    (row,) = section.costs
    assert (row.unit, row.verdict) == ("us", "met, close")
    assert row.cells["fastnet"].value == pytest.approx(1.24)
    text = tables.to_markdown(report)
    assert "## PyTorch: what an op adds" in text
    assert "| Argmax | 3.1 | 6 | 1.2 | -0.1 to 9.0 | 2 | met, close | 21.2 |" in text


def test_an_op_that_adds_more_misses_its_goal(report: Report) -> None:
    added = {"median": 2500.0, "low": 2400.0, "high": 2600.0, "least": 2450.0, "step": 3100.0}
    times = {"fastnet": {"median": 6000.0, "low": 5e3, "high": 7e3, "loops": 1}}
    report.environments["main"] = [Measured("op_argmax", times=times, excesses={"fastnet": added})]
    assert [row.verdict for row in rows(report) if row.unit == "us"] == ["MISSED"]


def test_what_finding_a_function_costs_is_in_nanoseconds(report: Report) -> None:
    added = {"median": 150.0, "low": 90.0, "high": 260.0, "least": 112.0, "step": 1100.0}
    times = {"fastnet": {"median": 1300.0, "low": 1e3, "high": 2e3, "loops": 1}}
    name = "dispatch_torch_exp"
    report.environments["main"].append(Measured(name, times=times, excesses={"fastnet": added}))
    text = tables.to_markdown(report)
    assert "## PyTorch: what finding a function by a value's type adds" in text
    assert "| exp, tensors | 1100 | 112 | 90 to 260 |" in text


def test_what_measuring_costs_is_told_of_an_op(report: Report) -> None:
    added = {"median": 62_400.0, "low": 58_000.0, "high": 101_000.0, "step": 45_000.0}
    times = {"fastnet": {"median": 107_000.0, "low": 1e5, "high": 2e5, "loops": 1}}
    opened = {"median": 5e5, "low": 4e5, "high": 6e5, "step": 1e5}
    report.environments["main"] += [
        Measured("measuring_1000", times=times, excesses={"fastnet": added}),
        Measured("tf_open_epoch", {"keras": "3"}, times=times, excesses={"fastnet": opened}),
    ]
    torch, tensorflow = sections(report)
    row = torch.rows[-1]
    assert (row.workload, row.unit, row.verdict) == ("measuring_1000", "ns an op", "met, close")
    assert row.cells["fastnet"].value == pytest.approx(62.4)
    text = tables.to_markdown(report)
    cells = "| Measure 1,000 ops | a plain step | 45 | 107 | 62 ns | 58 to 101 | 100 | met, close |"
    assert cells in text
    assert "Beside a plain step: by how many nanoseconds for each of its ops" in text
    # a step's own excess stays in milliseconds
    assert [one.cells["fastnet"].value for one in tensorflow.rows] == [pytest.approx(0.5)]


def test_markdown_names_versions_verdicts_and_failures(report: Report) -> None:
    report.environments["main"][0].failures["ignite"] = "RuntimeError: no"
    text = tables.to_markdown(report)
    assert "torch 2.9.0" in text
    assert "| MLP train step | bare loop | 1 | 1.04 | 1.04 | 1.04 to 1.04 | 1.05 | met |" in text
    assert "| 1.10 | MISSED |" in text.replace("| 1.1 |", "| 1.10 |")
    assert "FAILED: Ignite at mlp_train (main): RuntimeError: no" in text


def test_a_saved_report_is_read_back(report: Report) -> None:
    assert from_json(json.loads(json.dumps(asdict(report)))) == report


@pytest.mark.parametrize("name", ["report", "in_tensorflow"])
def test_the_plot_is_a_picture(request: pytest.FixtureRequest, name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plots" / "report.png"
    plot.draw(request.getfixturevalue(name), path)
    assert path.read_bytes().startswith(b"\x89PNG")
