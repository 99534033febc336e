"""What a release is made by says one thing in each of its files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.packaging.conftest import KERNEL, ROOT
from tests.subprocesses import run_python

PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_versions_agree() -> None:
    (version,) = re.findall(r'^version = "(.*)"$', PROJECT, re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [version]


def test_classifiers_name_the_pythons_and_systems_of_the_wheels() -> None:
    named = set(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT))
    (build,) = re.findall(r"^build = (\[.*\])$", PROJECT, re.MULTILINE)
    built = {f"3.{minor}" for minor in re.findall(r"cp3(\d+)-", build)}
    assert named == built
    assert ("cp314t-" in build) is ('"Programming Language :: Python :: Free Threading"' in PROJECT)
    for name, classifier in (("linux", "POSIX :: Linux"), ("macos", "MacOS")):
        wheels = f"[tool.cibuildwheel.{name}]" in PROJECT
        assert wheels is (f'"Operating System :: {classifier}"' in PROJECT), name


def test_old_setuptools_is_refused_in_one_line(tmp_path: Path) -> None:
    package = tmp_path / "setuptools"
    (package / "command").mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '65.5.0'; Extension = setup = object")
    (package / "command" / "build_ext.py").write_text("build_ext = object")
    done = run_python("setup.py", "--version", cwd=ROOT, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "65.5.0" in line
    assert "pip install --upgrade setuptools" in line


def test_no_text_installs_from_an_index_that_lacks_the_package() -> None:
    """The distribution is on no package index."""
    for folder in ("src", "docs", "examples"):
        for path in [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.md")]:
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"pip install '?fastnet", text), path


def test_wheels_are_tested_by_all_tests_of_the_kernel() -> None:
    (command,) = re.findall(r'^test-command = "(.*)"$', PROJECT, re.MULTILINE)
    files = re.findall(r"tests/\S+\.py", command)
    assert {f"tests/test{name}.py" for name in KERNEL} <= set(files)
    for file in files:
        assert (ROOT / file).is_file(), file


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.name)
def test_workflows_run_what_there_is(workflow: object) -> None:
    text = workflow.read_text(encoding="utf-8")  # type: ignore[attr-defined]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for target in re.findall(r"run: make ([a-z-]+)", text):
        assert target in targets
    # a job may write only what it says that it writes
    assert "\npermissions:\n  contents: read\n" in text
