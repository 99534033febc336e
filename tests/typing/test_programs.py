"""Types of the public API in programs: `build`, ops, modes, settings, and the README's code."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fastnet

pytestmark = pytest.mark.slow  # it reads all of torch

PROGRAMS = Path(__file__).parent / "programs"
PACKAGE = Path(fastnet.__file__).parent
README = Path(__file__).parents[2].joinpath("README.md").read_text(encoding="utf-8")


def write_readme(folder: Path) -> list[Path]:
    """Write the programs of README.md to files."""
    before, after, resume, keras = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    paths = []
    for name, program in (("before", before), ("after", after + resume), ("keras", keras)):
        paths.append(folder / f"{name}.py")
        paths[-1].write_text(program, encoding="utf-8")
    return paths


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
                "--untyped-calls-exclude=torch",  # Tensor.backward has no types.
                "--follow-imports=silent",
                "--no-error-summary",
                "--no-pretty",
                f"--cache-dir={root / 'cache'}",
                *(str(path) for path in [*sorted(PROGRAMS.glob("*.py")), *write_readme(root)]),
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
    assert {place: codes for place, codes in found.items() if place[0] != "bad_torch.py"} == {}


def test_pyright_agrees(tmp_path: Path) -> None:
    """It is not among the packages of the project: the test runs where it is installed."""
    if shutil.which("pyright") is None:
        pytest.skip("needs pyright")
    pytest.importorskip("torch")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "fastnet").symlink_to(PACKAGE, target_is_directory=True)
    settings = {"extraPaths": ["path"], "exclude": ["path"]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    write_readme(tmp_path)
    bad = (PROGRAMS / "bad_torch.py").read_text(encoding="utf-8")
    (tmp_path / "bad.py").write_text(bad, encoding="utf-8")
    command = ["pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    errors = {
        (Path(error["file"]).name, error["range"]["start"]["line"])
        for error in json.loads(done.stdout)["generalDiagnostics"]
        if error["severity"] == "error"
    }
    lines = enumerate(bad.splitlines())
    assert errors == {("bad.py", number) for number, line in lines if "# expect: " in line}


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
