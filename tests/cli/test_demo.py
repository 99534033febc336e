"""`fastnet demo`: how its arguments reach the program, and what it says without scikit-learn.

The program's own tests are in tests/demo.
"""

from __future__ import annotations

import importlib.util

import pytest

from fastnet.cli import main


@pytest.mark.parametrize(
    ("framework", "missing", "message"),
    [
        (
            "torch",
            {"sklearn"},
            "the demo needs scikit-learn, which is not installed. Install: pip install "
            "'fastnet[demo]'",
        ),
        (
            "tf",
            {"tensorflow", "rich"},
            "the demo needs tensorflow, rich, which are not installed. Install: pip install "
            "'fastnet[demo-tf]'",
        ),
    ],
)
def test_where_something_lacks(
    framework: str,
    missing: set[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "fastnet.cli.demo.find_spec", lambda name: None if name in missing else object()
    )
    assert main(["demo", "--framework", framework]) == 2
    assert capsys.readouterr().err == f"fastnet: {message}\n"


def test_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sklearn", "rich", "tqdm", "torch"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}")
    asked = []
    monkeypatch.setattr("fastnet.demo.digits.run", lambda *given: asked.append(given) or 1)
    assert main(["demo", "--epochs", "2", "--rounds", "3", "--seed", "-4"]) == 1
    assert main(["demo"]) == 1
    assert asked == [("torch", 2, 3, -4), ("torch", 20, 30, 0)]
