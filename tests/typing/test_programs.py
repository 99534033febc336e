"""What a type checker makes of a program of torch: what `build` gives, ops, modes and settings."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import fastnet

pytestmark = pytest.mark.slow  # it reads all of torch

PROGRAMS = Path(__file__).parent / "programs"
PACKAGE = Path(fastnet.__file__).parent


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], list[str]]:
    """The errors that mypy finds in the programs, by file and line, each by its code."""
    api = pytest.importorskip("mypy.api")
    pytest.importorskip("torch")
    root = tmp_path_factory.mktemp("mypy")
    (root / "path").mkdir()
    (root / "path" / "fastnet").symlink_to(PACKAGE, target_is_directory=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MYPYPATH", str(root / "path"))
        out, problems, _ = api.run(
            [
                "--strict",
                "--config-file=",
                "--ignore-missing-imports",
                "--follow-imports=silent",
                "--no-error-summary",
                "--no-pretty",
                f"--cache-dir={root / 'cache'}",
                *(str(path) for path in sorted(PROGRAMS.glob("*.py"))),
            ]
        )
    assert problems == ""
    errors: dict[tuple[str, int], list[str]] = {}
    for line in out.splitlines():
        parts = re.fullmatch(r"(.+?):(\d+): error: .+  \[([a-z-]+)\]", line)
        if parts is None:
            assert ": note: " in line, line
            continue
        path, number, code = parts.groups()
        errors.setdefault((Path(path).name, int(number)), []).append(code)
    return errors


def test_what_is_right_is_accepted(found: dict[tuple[str, int], list[str]]) -> None:
    assert {place: codes for place, codes in found.items() if place[0] == "good_torch.py"} == {}


def test_what_is_wrong_is_refused(found: dict[tuple[str, int], list[str]]) -> None:
    lines = enumerate((PROGRAMS / "bad_torch.py").read_text().splitlines(), 1)
    expected = {
        ("bad_torch.py", number): [line.partition("# expect: ")[2]]
        for number, line in lines
        if "# expect: " in line
    }
    assert {
        place: codes for place, codes in found.items() if place[0] == "bad_torch.py"
    } == expected


def test_what_is_accepted_runs() -> None:
    pytest.importorskip("torch")
    runpy.run_path(str(PROGRAMS / "good_torch.py"))
