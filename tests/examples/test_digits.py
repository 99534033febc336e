"""The program on real data, as a newcomer runs it."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("rich")
pytest.importorskip("tqdm")

PROGRAM = Path(__file__).parents[2] / "examples" / "digits.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def medians(line: str) -> list[float]:
    """Read what a row of the table says: each cell is a median, and its quartiles in brackets."""
    found = re.findall(r"([\d.]+) \(([\d.]+) to ([\d.]+)\)", line)
    assert all(float(low) <= float(middle) <= float(high) for middle, low, high in found)
    return [float(middle) for middle, _, _ in found]


@pytest.mark.slow
def test_it_learns_to_read() -> None:
    finished = run("--rounds", "15")
    assert finished.returncode == 0, finished.stderr
    accuracy, held_out = re.search(r"([\d.]+)% of (\d+) held-out", finished.stdout).groups()  # type: ignore[union-attr]
    assert 97 <= float(accuracy) <= 100
    assert int(held_out) == 450  # a quarter of all there are
    assert "860/860" in finished.stderr  # the progress bar has come to its end
    assert "accuracy=" in finished.stderr
    for mode in ("train", "infer"):
        (line,) = [line for line in finished.stdout.splitlines() if f"│ {mode} │" in line]
        by_hand, ours, ratio = medians(line)
        # Microseconds, of a convolutional network. What the ratio is depends on what else runs
        # here: bench/ says how it is measured well. It must only be of these two.
        assert 20 < by_hand < 1e6
        assert 20 < ours < 1e6
        assert ratio == pytest.approx(ours / by_hand, rel=0.5)


@pytest.fixture
def digits(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    return importlib.import_module("digits")


@pytest.mark.slow
def test_it_says_so_if_it_does_not(
    digits: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(digits, "GOAL", 1.01)
    monkeypatch.setattr(sys, "argv", ["digits.py", "--epochs", "1", "--rounds", "1"])
    assert digits.main() == 1
    printed = capsys.readouterr()
    assert "That is less than the goal of 101%. Try more --epochs." in printed.err


def test_no_digit_is_in_both_parts(digits: ModuleType) -> None:
    data, held = digits.read_digits(seed=0)
    assert len(data["label"]) + len(held["label"]) == 1797
    seen = {image.numpy().tobytes() for image in data["image"]}
    assert not any(image.numpy().tobytes() in seen for image in held["image"])
    for part in (data, held):
        assert part["label"].unique().tolist() == list(range(10))


@pytest.mark.parametrize("arguments", [["--epochs", "0"], ["--rounds", "-1"], ["--seed", "x"]])
def test_arguments_that_are_refused(
    digits: ModuleType, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["digits.py", *arguments])
    with pytest.raises(SystemExit) as caught:
        digits.main()
    assert caught.value.code == 2
