"""The table of verdicts, and that a comparison is made of two processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import verdicts


def found(verdict: str, change: float, **more: Any) -> dict[str, Any]:
    given = {"noise": 0.01, "part_verdicts": 0, "parts": 12, "tries": 1, "steps": 9}
    return {"verdict": verdict, "change": change, **given, **more}


def test_the_table() -> None:
    data = {
        "when": "now",
        "processor": "a processor",
        "versions": {"python": "3", "torch": "2"},
        "busy_processes": 2,
        "turns": 5,
        "seconds": 60,
        "same": [found("", 0.0), found("", 0.01), found("too noisy", 0.02, noise=None, tries=4)],
        "planted": [found("grew", 0.1, part_verdicts=1)],
    }
    lines = verdicts.table(data).splitlines()
    assert "a processor, one thread, 2 busy processes beside it, in 60 s." in lines[2]
    assert lines[-2:] == [
        "| is the same | 3 | 0 | 0 | 2 | 1 | +1.0% (+0.0% to +2.0%) | ± 1.0% | 2.0 | 0 of 36 |",
        "| takes 10 % more | 1 | 1 | 0 | 0 | 0 | +10.0% (+10.0% to +10.0%) | ± 1.0% | 1.0 | "
        "1 of 12 |",
    ]


def test_what_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from fastnet.profiling import Profile

    names = []
    for turns in (None, 3):
        verdicts.measure(str(tmp_path / "made.json"), 4, turns)
        section = Profile.from_json(tmp_path / "made.json").section("train")
        assert (section.steps, section.trains) == (4, True)
        names.append({row.name for row in section.rows if row.kind == "op"})
    assert names[1] - names[0] == {verdicts._OP}
