"""Unchanged programs, run swapped from the command line."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("fastestimator", reason="swaps into FastEstimator: `make test-fe`")

pytestmark = pytest.mark.tf

from tests.subprocesses import run_python

# says who runs it, in which way, and fails when it is told to
PROGRAM = """\
import sys

import torch

import helper
from fastestimator import Network, build
from fastestimator.op.tensorop.model import ModelOp


def main():
    model = build(lambda: torch.nn.Linear(2, 1), "sgd")
    network = Network([ModelOp(model, "x", "y")])
    result = network.transform({"x": torch.ones(3, 2)}, mode="infer")
    print(type(network).__mro__[1].__module__, tuple(result["y"].shape), helper.NAME)
    print(__name__, sys.argv)
    if "fail" in sys.argv:
        raise KeyError("as it was told to")
    if "exit" in sys.argv:
        sys.exit(7)


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text('NAME = "beside it"\n')
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


run = partial(run_python, TF_CPP_MIN_LOG_LEVEL="3")


SWAP = ("-m", "fastnet.integrations.fastestimator")
COMMAND = ("-m", "fastnet", "run-fastestimator")


def traceback(text: str) -> str:
    return text[text.index("Traceback") :]


@pytest.mark.slow
def test_as_it_is_and_swapped_until_it_fails(program: Path) -> None:
    written = f"(3, 1) beside it\n__main__ ['{program}', '--size', '3', 'fail']\n"
    plain, swapped = (run(*way, program, "--size", 3, "fail") for way in ((), SWAP))
    assert plain.stdout == f"fastestimator.network {written}"
    assert swapped.stdout == f"fastnet.network.torch.network {written}"
    assert swapped.returncode == plain.returncode == 1
    assert traceback(swapped.stderr) == traceback(plain.stderr)  # its own lines alone


@pytest.mark.slow
def test_swapped_by_the_command_until_it_exits(program: Path) -> None:
    result = run(*COMMAND, program, "--size", 3, "exit")
    assert result.stdout == (
        "fastnet.network.torch.network (3, 1) beside it\n"
        f"__main__ ['{program}', '--size', '3', 'exit']\n"
    )
    assert result.returncode == 7, result.stderr


def test_a_program_that_is_not_there() -> None:
    result = run(*SWAP, "nowhere.py")
    assert result.returncode == 2
    assert result.stderr == "fastnet: There is no program 'nowhere.py' to run.\n"


@pytest.mark.parametrize("way", [SWAP, COMMAND], ids=" ".join)
def test_arguments(tmp_path: Path, way: tuple[str, ...]) -> None:
    """Those before the program are the command's, and the rest the program's."""
    path = tmp_path / "tells.py"
    path.write_text(
        "import sys\n"
        "from fastnet.integrations.fastestimator.networks import get_compile\n"
        "print(get_compile(), sys.argv[1:])\n"
    )
    assert run(*way, "--compile", path, "--x").stdout == "True ['--x']\n"
    arguments = ["--help", "--compile", "--", "y", "--json=4"]
    assert run(*way, path, *arguments).stdout == f"False {arguments}\n"
