"""The kernel's stubs: what a type checker accepts in a program, and what it refuses."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import fastnet

SNIPPETS = Path(__file__).parent / "snippets"
PACKAGE = Path(fastnet.__file__).parent


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], list[str]]:
    """The errors that mypy finds in the snippets, by file and line, each as "code: text"."""
    api = pytest.importorskip("mypy.api")
    root = tmp_path_factory.mktemp("mypy")
    # By a path of its own, wherever it is installed; without frameworks, which take long to read.
    (root / "path").mkdir()
    (root / "path" / "fastnet").symlink_to(PACKAGE, target_is_directory=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MYPYPATH", str(root / "path"))
        out, problems, _ = api.run(
            [
                "--strict",
                "--config-file=",
                "--no-site-packages",
                "--follow-imports=silent",
                "--no-error-summary",
                "--no-pretty",
                f"--cache-dir={root / 'cache'}",
                *(str(path) for path in sorted(SNIPPETS.glob("*.py"))),
            ]
        )
    assert problems == ""
    errors: dict[tuple[str, int], list[str]] = {}
    for line in out.splitlines():
        parts = re.fullmatch(r"(.+?):(\d+): error: (.+)  \[([a-z-]+)\]", line)
        if parts is None:
            assert ": note: " in line, line
            continue
        path, number, text, code = parts.groups()
        errors.setdefault((Path(path).name, int(number)), []).append(f"{code}: {text}")
    return errors


def expected(path: Path) -> dict[tuple[str, int], str]:
    lines = enumerate(path.read_text().splitlines(), 1)
    return {
        (path.name, number): line.partition("# expect: ")[2]
        for number, line in lines
        if "# expect: " in line
    }


@pytest.mark.parametrize("path", sorted(SNIPPETS.glob("good_*.py")), ids=lambda path: path.stem)
def test_accepted(path: Path, found: dict[tuple[str, int], list[str]]) -> None:
    assert {place: texts for place, texts in found.items() if place[0] == path.name} == {}


@pytest.mark.parametrize("path", sorted(SNIPPETS.glob("bad_*.py")), ids=lambda path: path.stem)
def test_refused(path: Path, found: dict[tuple[str, int], list[str]]) -> None:
    refused = {place: texts for place, texts in found.items() if place[0] == path.name}
    assert sorted(refused) == sorted(expected(path))
    for place, code in expected(path).items():
        assert code in [text.partition(":")[0] for text in refused[place]], refused[place]


@pytest.mark.parametrize("path", sorted(SNIPPETS.glob("good_*.py")), ids=lambda path: path.stem)
def test_what_is_accepted_runs(path: Path) -> None:
    pytest.importorskip("typing_extensions")
    runpy.run_path(str(path))


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
