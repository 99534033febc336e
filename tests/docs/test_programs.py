"""The pages that are programs: each runs from its first block to its last, as a notebook would."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.programs import DOCS, programs, run

COMPLETE = DOCS.parent / "examples" / "digits.py"

# Fragments, which need an estimator.
NOT_RUN = {"fastestimator"}
# Where the programs of each page are run; those of the last two need the peers of bench/.
TESTED = {
    "checkpoints": "tests/docs/test_pages.py",
    "compile": "tests/docs/test_programs.py",
    "contract": "tests/docs/test_programs.py",
    "copying": "tests/docs/test_programs.py",
    "distributed": "tests/docs/test_pages.py",
    "faq": "tests/docs/test_programs.py",
    "huggingface": "tests/docs/test_programs.py",
    "keras": "tests/docs/test_programs.py",
    "migration": "tests/docs/test_pages.py",
    "ops": "tests/docs/test_programs.py",
    "overhead": "tests/docs/test_overhead.py",
    "pytorch": "tests/docs/test_programs.py",
    "several": "tests/docs/test_programs.py",
    "slicing": "tests/docs/test_programs.py",
    "training": "tests/docs/test_pages.py",
    "beside": "bench/test_pages.py",
    "coming": "bench/test_pages.py",
}


def test_every_page_with_programs_is_run() -> None:
    found = {page.stem for page in DOCS.glob("*.md") if programs(page.stem)}
    assert found == TESTED.keys() | NOT_RUN


@pytest.mark.parametrize(
    "page", ["compile", "contract", "copying", "faq", "ops", "several", "slicing"]
)
def test_pages(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    if any("import tensorflow" in program for program in programs(page)):
        pytest.importorskip("tensorflow")
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for program in programs(page):
        exec(program, names)


@pytest.mark.slow
def test_the_pytorch_program(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    told = run("\n\n".join(programs("pytorch")), tmp_path)
    accuracies = re.findall(r"^epoch \d: loss .*, accuracy (.*)$", told, re.MULTILINE)
    assert len(accuracies) == 3
    assert float(accuracies[-1]) > 0.8


@pytest.mark.slow
def test_the_complete_pytorch_program_resumes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    whole = COMPLETE.read_text(encoding="utf-8")
    at_once, stopped = tmp_path / "at_once", tmp_path / "stopped"
    at_once.mkdir()
    stopped.mkdir()
    expected = run(whole, at_once, "--epochs", "3")
    assert expected.count(", accuracy") == 3
    told = run(whole, stopped, "--epochs", "2").splitlines()[:-1]
    told += run(whole, stopped, "--epochs", "3").splitlines()
    assert told == expected.splitlines()
    again = run(whole, stopped, "--epochs", "3")
    assert again.splitlines() == told[-1:]
    assert (stopped / "best" / "reader.pt").is_file()


@pytest.mark.slow
def test_the_complete_pytorch_program_in_two_processes(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed")
    pytest.importorskip("sklearn")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    told = run(COMPLETE.read_text(encoding="utf-8"), tmp_path, "--epochs", "2", launcher=torchrun)
    # the first rank alone prints
    assert re.findall(r"^epoch (\d)", told, re.MULTILINE) == ["1", "2"]
    assert (tmp_path / "run.ckpt").is_file()


@pytest.mark.slow
def test_the_program_with_models_of_hugging_face(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    told = run("\n\n".join(programs("huggingface")), tmp_path)
    accuracies = re.findall(r"^epoch \d: loss .*, accuracy (.*)$", told, re.MULTILINE)
    assert len(accuracies) == 8
    assert float(accuracies[-1]) > 0.9


@pytest.mark.tf
@pytest.mark.slow
def test_the_keras_program(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    pytest.importorskip("sklearn")
    told = run("\n\n".join(programs("keras")), tmp_path)
    accuracies = re.findall(r"^epoch \d: loss .*, accuracy (.*)$", told, re.MULTILINE)
    assert len(accuracies) == 3
    assert float(accuracies[-1]) > 0.8
    # a trace for the first size and one for all others, in each mode
    assert told.count("first step in mode") == 2
    assert told.count("any length of axis 0 fits") == 2
