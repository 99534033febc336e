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
def test_counts_are_reproducible() -> None:
    code = """
import os
for length in (1000, 1000, 1000, 1000, 2000):
    items = iter([None] * length)
    os.getppid()
    for item in items:
        pass
    os.getppid()
"""
    found = callgrind.count([sys.executable, "-I", "-S", "-c", code], "/libc")[::2]
    *_, before, once, twice = (part.total for part in found)
    assert before == once
    assert twice == pytest.approx(2 * once, rel=0.05)


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a file with the figures that will be counted."""
    monkeypatch.setattr(instructions, "counted", lambda: _FIGURES)
    monkeypatch.setattr(instructions, "table", lambda now, was: "")
    path = tmp_path / "instructions.json"
    assert instructions.main(["--record", "--figures", str(path)]) == 0
    return path


def _check(path: Path, build: str | None = None, **changes: float) -> int:
    """Compare with committed figures of "op" that are changed by factors."""
    saved = json.loads(path.read_text())
    recorded = saved[instructions.tag()]
    recorded["python"] = build or recorded["python"]
    for kind, factor in changes.items():
        recorded["figures"]["op"][kind] *= factor
    path.write_text(json.dumps(saved))
    status: int = instructions.main(["--check", "--figures", str(path)])
    return status


@pytest.mark.parametrize("kind", ["all", "own"])
def test_a_slower_kernel_fails(
    committed: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _check(committed) == 0
    assert _check(committed, **{kind: 0.96}) == 0
    assert _check(committed, **{kind: 0.9}) == 1
    said = capsys.readouterr().err
    assert "op, " in said
    assert "step" not in said


def test_on_another_build_only_the_kernels_own_count(committed: Path) -> None:
    assert _check(committed, "another build", all=0.5) == 0
    assert _check(committed, "another build", own=0.9) == 1


def test_missing_figures_are_no_success(committed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = {**_FIGURES, "new": {"all": 1.0, "own": 1.0}}
    monkeypatch.setattr(instructions, "counted", lambda: more)
    assert _check(committed) == 3
    grown = {**_FIGURES, "step": {"all": 2000.0, "own": 8.0}}
    monkeypatch.setattr(instructions, "counted", lambda: grown)
    assert _check(committed) == 1
    monkeypatch.setattr(instructions, "tag", lambda: "CPython 4.0, abacus")
    assert instructions.main(["--check", "--figures", str(committed)]) == 3


def test_nothing_doubtful_is_recorded(committed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = committed.read_text()
    turns = iter([_FIGURES, {**_FIGURES, "op": {"all": 200.5, "own": 100.0}}])
    monkeypatch.setattr(instructions, "counted", lambda: next(turns))
    assert instructions.main(["--record", "--figures", str(committed)]) == 1
    monkeypatch.undo()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert instructions.main(["--record", "--figures", str(committed)]) == 2
    assert committed.read_text() == before


def test_every_measure_has_a_committed_figure() -> None:
    names = {measure.name for measure in instructions.measures()}
    for recorded in json.loads(instructions.FIGURES.read_text()).values():
        assert set(recorded["figures"]) == names
