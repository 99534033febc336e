"""How costs grow: lines, tables and pictures of measurements that are made up, and a real one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench import growth, machine, plot_growth, report, runner, tables, worker
from bench.results import Report, sections
from bench.worker import Measured
from bench.workloads import BY_NAME, TOGETHER

_SIZES = {"grow_ops": (1, 10, 100), "tf_grow_ops": (1, 10)}


def _measured(name: str, version: str, times: dict[str, float]) -> Measured:
    baseline = BY_NAME[name].baseline
    return Measured(
        workload=name,
        versions={"torch": version, "tensorflow-cpu": version, "keras": version},
        rounds=3,
        times={
            peer: {"median": time, "low": time, "high": time, "loops": 1}
            for peer, time in times.items()
        },
        ratios={
            peer: {baseline: dict.fromkeys(("median", "low", "high"), time / times[baseline])}
            for peer, time in times.items()
        },
    )


def _chain(cost: Callable[[int], dict[str, float]], prefix: str, group: str) -> list[Measured]:
    return [_measured(f"{prefix}_{size}", "1.0", cost(size)) for size in _SIZES[group]]


@pytest.fixture
def grown() -> Report:
    """A loop of 1,000 + 10 n ns, fastnet at half of it, FastEstimator at ten times, elsewhere."""
    torch = _chain(lambda n: {"bare": 1000.0 + 10 * n, "fastnet": 500.0 + 5 * n}, "ops", "grow_ops")
    elsewhere = _chain(
        lambda n: {"bare": 2000.0 + 20 * n, "fastestimator": 20000.0 + 200 * n}, "ops", "grow_ops"
    )
    tf = _chain(lambda n: {"tf_concrete": 1e5, "fastnet": 3e4}, "tf_ops", "tf_grow_ops")
    return Report(
        made="2000-01-01T00:00+00:00",
        processor="a processor",
        rounds=3,
        round_ms=1.0,
        environments={"main": [*torch, *tf], "FastEstimator's": elsewhere},
    )


def test_lines_stand_on_one_baseline(grown: Report) -> None:
    (group,) = growth.groups(sections(grown)[0])
    assert (group.name, group.what, group.sizes) == ("grow_ops", "ops", [1, 10, 100])
    assert group.baseline_ns == {1: 1010.0, 10: 1100.0, 100: 2000.0}
    own, other = group.lines
    assert (own.peer, other.peer) == ("fastnet", "fastestimator")
    assert own.each_more == pytest.approx(5)
    # ten times the loop of its own process, which was half as fast as this one
    assert other.times_ns == pytest.approx({1: 10100.0, 10: 11000.0, 100: 20000.0})
    assert other.each_more == pytest.approx(100)


def test_what_grows_stands_in_tables_of_its_own(grown: Report) -> None:
    text = tables.to_markdown(grown)
    assert "## PyTorch: growth with ops" in text
    assert "| 10 | 1.1 | 0.50 | 10.0 |" in text
    assert "| one more, µs | 0.01 | 0.005 | 0.1 |" in text
    assert "## TensorFlow 1.0, Keras 1.0: growth with ops" in text
    assert "its goals" not in text


def test_one_size_has_no_slope() -> None:
    assert growth.each_more({4: 100.0}) is None


def test_a_picture_for_each_thing_that_grows(grown: Report, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = plot_growth.draw(grown, tmp_path / "plots", "growth")
    assert [path.name for path in made] == ["growth_ops.png", "growth_tf_ops.png"]
    for path in made:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_every_peer_that_grows_has_a_line_of_its_own_look() -> None:
    peers = {
        peer for workload in BY_NAME.values() if workload.grows for peer in workload.only or ()
    }
    looks = [plot_growth.style(peer) for peer in peers if not peer.startswith("tf_")]
    assert len(set(looks)) == len(looks)


def test_growth_is_a_name_for_all_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, ...]] = []

    def run(python: str, workloads: tuple[str, ...], *_: object) -> list[Measured]:
        asked.append(workloads)
        return []

    monkeypatch.setattr(runner, "run", run)
    arguments = ["--workloads", "growth", "--save", str(tmp_path), "--name", "growth", "--plain"]
    monkeypatch.delenv(report.FE_PYTHON, raising=False)
    assert report.main(arguments) == 0
    grows = {name for name, workload in BY_NAME.items() if workload.grows}
    assert {name for names in asked for name in names} == grows
    assert TOGETHER["grow_ops"] in asked
    assert (tmp_path / "growth.json").exists()
    assert (tmp_path / "growth.md").exists()


@pytest.mark.skipif(not machine.has("torch"), reason="torch is not installed")
def test_sizes_are_timed_in_the_same_rounds() -> None:
    names = ["ops_1", "ops_100"]
    few, many = worker.measure_growth(names, ["fastnet"], rounds=3, round_ns=100_000)
    for measured in (few, many):
        assert not measured.failures
        assert set(measured.times) == {"bare", "bare_strict", "fastnet"}
        assert measured.ratios["bare"]["bare"]["median"] == 1
