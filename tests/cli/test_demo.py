"""`fastnet demo`: its arguments, and missing packages."""

from __future__ import annotations

import importlib.util

import pytest

from fastnet.cli import main


@pytest.mark.parametrize(
    ("framework", "missing", "parts"),
    [
        ("torch", {"sklearn"}, ["pip install scikit-learn"]),
        ("tf", {"tensorflow", "sklearn"}, ["pip install tensorflow scikit-learn"]),
    ],
)
def test_missing_packages(
    framework: str,
    missing: set[str],
    parts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "fastnet.cli.demo.find_spec", lambda name: None if name in missing else object()
    )
    assert main(["demo", "--framework", framework]) == 2
    message = capsys.readouterr().err
    for part in parts:
        assert part in message


def test_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sklearn", "torch"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}")
    asked = []
    monkeypatch.setattr("fastnet.demo.digits.run", lambda *given: asked.append(given) or 1)
    assert main(["demo", "--epochs", "2", "--seed", "4"]) == 1
    assert main(["demo"]) == 1
    assert asked == [("torch", 2, 4), ("torch", 20, 0)]
