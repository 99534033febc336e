"""The programs in README.md run, and do what is said beside them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parent.parent / "README.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def run(program: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(program, str(README), "exec"), names)
    return names


def test_there_is_one_in_each_framework() -> None:
    assert ["import torch" in program for program in PROGRAMS] == [True, False]
    assert ["import tensorflow" in program for program in PROGRAMS] == [False, True]


def test_torch() -> None:
    pytest.importorskip("torch")
    result = run(PROGRAMS[0])["result"]
    assert set(result) == {"image", "label", "scores", "loss"}
    assert result["scores"].shape == (32, 10)


@pytest.mark.tf
def test_tensorflow(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorflow")
    program = PROGRAMS[1]
    names = run(program)
    assert names["result"]["scores"].shape == (7, 10)
    # what it prints is what its own comment says
    said = re.search(r"print\(.*\)  # (.*)", program)
    assert said is not None
    assert capsys.readouterr().out.strip() == said[1]


def test_the_figure_says_what_was_measured() -> None:
    results = README.parent / "bench" / "results" / "report.json"
    measured = json.loads(results.read_text(encoding="utf-8"))["environments"]["main"]
    (step,) = [one for one in measured if one["workload"] == "mlp_train"]
    ratios = {peer: found["bare"]["median"] for peer, found in step["ratios"].items()}
    own = ratios.pop("fastnet")
    others = [ratio for peer, ratio in ratios.items() if peer != "bare"]
    (said,) = re.findall(r"!\[(.*)\]\(bench/results/report_step.png\)", README.read_text("utf-8"))
    assert f": {own:.2f} of the loop by hand" in said
    assert f"take {min(others):.1f} to {max(others):.1f} times as long" in said


def test_the_table_says_what_was_measured() -> None:
    results = README.parent / "bench" / "results" / "compiled.json"
    measured = json.loads(results.read_text(encoding="utf-8"))["environments"]["main"]
    ratios = {one["workload"]: one["ratios"] for one in measured}
    rows = re.findall(
        r"^\| (?!a step of|-)(.+) \| (.+) \| (.+) \|$", README.read_text("utf-8"), re.M
    )
    names = ["mlp_sgd", "mlp_adam", "modules120_adam", "lenet_train", "pair"]
    assert len(rows) == len(names)
    for name, (_, *said) in zip(names, rows, strict=True):
        for peer, figure in zip(["fastnet", "compiled_update"], said, strict=True):
            found = ratios[f"compiled_{name}"].get(peer)
            if found is None:
                assert figure == "-"
            else:
                assert float(figure) == pytest.approx(found["bare"]["median"], rel=0.05)
