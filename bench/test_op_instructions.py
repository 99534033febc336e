"""Counting the instructions of ops: what is counted, and what is made of the counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import op_instructions


def _names(framework: str, *names: str) -> list[str]:
    return [one.name for one in op_instructions.workloads_of(framework, names)]


def test_ops_are_found_by_class_and_by_case() -> None:
    assert _names("torch", "DiceLoss") == ["op_dice", "op_dice_weighted"]
    assert _names("tf", "dice_weighted") == ["tf_op_dice_weighted"]
    # in the order of the report, and each once
    assert _names("torch", "mixup", "MixUpBatch", "argmax") == ["op_argmax", "op_mixup"]
    assert set(_names("torch", "L1_Loss")) == {"op_l1", "op_l1_smooth", "op_l1_huber"}
    assert len(_names("torch")) == len(_names("tf")) > 37


def test_a_name_is_none_of_another_class() -> None:
    # `ModelOp` begins with it
    with pytest.raises(ValueError, match="There is no op 'Model'"):
        _names("torch", "Model")


def test_an_unknown_op_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        op_instructions.main(["torch", "DiceLos"])
    assert "There is no op 'DiceLos'. There are: argmax, " in capsys.readouterr().err


def test_what_a_step_is_charged_with() -> None:
    counted = {"step": 900.0, "step of nothing": 300.0, "by hand": 450.0, "by hand, of nothing": 50}
    assert op_instructions.added(counted) == (400.0, 200.0)


def test_without_valgrind_nothing_is_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert op_instructions.main(["torch", "dice"]) == 2
    assert "valgrind is not installed" in capsys.readouterr().err


def test_what_is_counted_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counted = {
        "step": 12000.0,
        "step of nothing": 3000.0,
        "by hand": 8500.0,
        "by hand, of nothing": 500.0,
    }
    asked: list[Any] = []

    def count(workloads: Any, steps: int) -> list[dict[str, float]]:
        asked.append(([one.name for one in workloads], steps))
        return [counted for _ in workloads]

    monkeypatch.setattr(op_instructions, "count", count)
    path = tmp_path / "counted.md"
    assert op_instructions.main(["torch", "Argmax", "--steps", "7", "--save", str(path)]) == 0
    assert asked == [(["op_argmax"], 7)]
    assert capsys.readouterr().out.splitlines()[1].split() == [
        *["Argmax", "8,000", "12,000", "1,000", "12.5", "%"]
    ]
    lines = path.read_text().splitlines()
    assert lines[0] == "## Instructions that an op adds"
    assert "python " in lines[2]
    assert "torch " in lines[2]
    assert lines[4:] == [
        "| op | by hand | fastnet's step | adds | of by hand |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| Argmax | 8,000 | 12,000 | 1,000 | 12.5 % |",
    ]
