"""The program on real data, as a newcomer runs it, in either framework."""

from __future__ import annotations

import importlib
import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

from fastnet.cli import main
from fastnet.demo import digits
from tests.subprocesses import run_python

FRAMEWORKS = ["torch", pytest.param("tf", marks=pytest.mark.tf)]
PACKAGES = {"torch": "torch", "tf": "tensorflow"}

# the program, and then which frameworks it has imported
RUN = """
import sys
from fastnet.cli import main
status = main(["demo", *sys.argv[1:]])
print("imported:", *sorted({"torch", "tensorflow"} & set(sys.modules)))
sys.exit(status)
"""


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_it_learns_to_read(framework: str) -> None:
    pytest.importorskip(PACKAGES[framework])
    finished = run_python("-c", RUN, "--framework", framework)
    assert finished.returncode == 0, finished.stderr
    accuracy, held_out = re.search(r"([\d.]+)% of (\d+) held-out", finished.stdout).groups()  # type: ignore[union-attr]
    assert 97 <= float(accuracy) <= 100
    assert int(held_out) == 450  # a quarter of all there are
    assert "epoch 20: loss " in finished.stdout
    assert re.search(
        r"A training step .*: \d+ us, [\d.]+ of a hand-written loop's \d+ us", finished.stdout
    )
    assert finished.stdout.splitlines()[-1] == f"imported: {PACKAGES[framework]}"


def parts_for(framework: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import what the program needs of a framework; the tests' own threads are left alone."""
    pytest.importorskip(PACKAGES[framework])
    parts = importlib.import_module(f"fastnet.demo.digits_{framework}")
    monkeypatch.setattr(parts, "use_one_thread", lambda: None)
    return parts


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_it_says_so_if_it_does_not(
    framework: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts_for(framework, monkeypatch)
    monkeypatch.setattr(digits, "GOAL", 1.01)
    assert main(["demo", "--framework", framework, "--epochs", "1"]) == 1
    printed = capsys.readouterr()
    assert "101%" in printed.err
    assert "--epochs" in printed.err


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_digit_is_in_both_parts(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = parts_for(framework, monkeypatch)
    data, held = digits.read_digits(seed=0, channel_axis=parts.CHANNEL_AXIS)
    assert data["image"].shape[1:] == {"torch": (1, 8, 8), "tf": (8, 8, 1)}[framework]
    assert len(data["label"]) + len(held["label"]) == 1797
    seen = {image.tobytes() for image in data["image"]}
    assert not any(image.tobytes() in seen for image in held["image"])
    for part in (data, held):
        assert np.unique(part["label"]).tolist() == list(range(10))
