"""The count of instructions, and the check against the committed figures."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from bench import callgrind

instructions = pytest.importorskip("bench.instructions", exc_type=ImportError)

_PROFILE = """\
version: 1
part: 1
ob=(1) /usr/lib/libpython.so
fn=(1) start
5 30
totals: 30
part: 2
ob=(2) /somewhere/fastnet/_execute.so
fn=(2) run
12 100
+3 7
cob=(1)
cfn=(1)
calls=2 5
15 60
* 1
ob=(1)
fn=(1)
5 60
cob=(3) /somewhere/fastnet/_nest.so
cfn=(3) map
calls=1 8
5 9
ob=(3)
fn=(3)
8 9
totals: 177
"""

_FIGURES = {"op": {"all": 200.0, "own": 100.0}, "step": {"all": 2000.0, "own": 0.0}}


def test_a_profile_is_read_part_by_part() -> None:
    found = callgrind.parts(_PROFILE.splitlines(), "/fastnet/_")
    assert found == [callgrind.Count(30, 0), callgrind.Count(177, 100 + 7 + 1 + 9)]


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_a_loop_takes_the_same_each_time_and_one_twice_as_long_takes_twice() -> None:
    code = """
import os
for length in (1000, 1000, 1000, 1000, 2000):
    things = iter([None] * length)
    os.getppid()
    for thing in things:
        pass
    os.getppid()
"""
    command = [sys.executable, "-I", "-S", "-c", code]
    found = callgrind.count(command, "/libc")[::2]
    # the first ones warm up
    *_, before, once, twice = (part.total for part in found)
    assert before == once
    assert twice == pytest.approx(2 * once, rel=0.05)


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file with the figures that will be counted."""
    monkeypatch.setattr(instructions, "counted", lambda: _FIGURES)
    monkeypatch.setattr(instructions, "table", lambda now, was: _Nothing())
    path = tmp_path / "instructions.json"
    assert instructions.main(["--record", "--figures", str(path)]) == 0
    return path


class _Nothing:
    def to_markdown(self) -> str:
        return ""


def _change(path: Path, name: str, kind: str, factor: float) -> None:
    saved = json.loads(path.read_text())
    saved[instructions.tag()]["figures"][name][kind] *= factor
    path.write_text(json.dumps(saved))


def _check(path: Path) -> int:
    status: int = instructions.main(["--check", "--figures", str(path)])
    return status


def test_the_same_figures_pass(committed: Path) -> None:
    assert _check(committed) == 0


@pytest.mark.parametrize("kind", ["all", "own"])
def test_a_slower_kernel_fails_and_is_named(
    committed: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _change(committed, "op", kind, 0.9)
    assert _check(committed) == 1
    said = capsys.readouterr().err
    assert "op, " in said
    assert "+11.1%" in said
    assert "step" not in said


@pytest.mark.parametrize("factor", [0.96, 1.2])
def test_less_than_five_percent_and_any_fall_pass(committed: Path, factor: float) -> None:
    _change(committed, "op", "own", factor)
    assert _check(committed) == 0


def test_what_cost_nothing_may_not_begin_to(
    committed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grown = {**_FIGURES, "step": {"all": 2000.0, "own": 8.0}}
    monkeypatch.setattr(instructions, "counted", lambda: grown)
    assert _check(committed) == 1
    assert "where there was none" in capsys.readouterr().err


def test_on_another_build_of_python_only_the_kernels_own_count(committed: Path) -> None:
    saved = json.loads(committed.read_text())
    saved[instructions.tag()]["python"] = "another build"
    committed.write_text(json.dumps(saved))
    _change(committed, "op", "all", 0.5)
    assert _check(committed) == 0
    _change(committed, "op", "own", 0.9)
    assert _check(committed) == 1


def test_an_interpreter_without_figures_is_no_success(
    committed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(instructions, "tag", lambda: "CPython 4.0, abacus")
    assert _check(committed) == 3
    assert "no figures for CPython 4.0, abacus" in capsys.readouterr().err


def test_a_measure_without_a_figure_is_no_success(
    committed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {**_FIGURES, "new": {"all": 1.0, "own": 1.0}}
    monkeypatch.setattr(instructions, "counted", lambda: more)
    assert _check(committed) == 3


def test_without_valgrind_nothing_is_recorded(
    committed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    before = committed.read_text()
    assert _check(committed) == 2
    assert instructions.main(["--record", "--figures", str(committed)]) == 2
    assert "valgrind is not installed" in capsys.readouterr().err
    assert committed.read_text() == before


def test_counts_that_differ_are_not_recorded(
    committed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = iter([_FIGURES, {**_FIGURES, "op": {"all": 200.5, "own": 100.0}}])
    monkeypatch.setattr(instructions, "counted", lambda: next(turns))
    before = committed.read_text()
    assert instructions.main(["--record", "--figures", str(committed)]) == 1
    assert committed.read_text() == before


def test_every_measure_has_a_committed_figure() -> None:
    saved = json.loads(instructions.FIGURES.read_text())
    names = {measure.name for measure in instructions.measures()}
    for recorded in saved.values():
        assert set(recorded["figures"]) == names
