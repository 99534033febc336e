"""What all commands have in common."""

from __future__ import annotations

import re

import pytest

import fastnet
from fastnet.cli import main
from tests.subprocesses import run_python

COMMANDS = ("profile", "explain", "demo", "run-fastestimator")


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let help be as wide as it is where nobody has said otherwise."""
    monkeypatch.setenv("COLUMNS", "80")


def refused(*words: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    listed = re.findall(r"^    ([a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    assert tuple(listed) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_examples_of_it(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    _, _, examples = shown.partition("\nexample")
    assert f"\n  fastnet {command}" in examples
    # and they name no option that there is not
    for option in re.findall(r" (--[a-z-]+)", examples):
        if command in ("profile", "explain", "demo"):
            assert f"\n  {option} " in shown, option
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["profil", "networks.py:network"], ["'profil'", "run-fastestimator"]),
        (["explain", "a:b", "--mod", "eval"], ["--mod"]),
        (["explain", "a:b", "--mode", "evl"], ["--mode", "'evl'", "infer"]),
        (["explain", "a:b", "--epoch", "0"], ["--epoch", "'0' is not an integer of at least 1"]),
        (["profile", "a:b", "--batch", "c", "--steps", "many"], ["--steps", "'many'"]),
        (["explain", "a:b", "--output", "no/such/graph.svg"], ["no folder 'no/such'"]),
        (["explain", "a:b", "--output", "/"], ["'/' is a folder"]),
        (["demo", "--framework", "torhc"], ["--framework", "'torhc'", "tf"]),
        (["demo", "--seed", "-4"], ["--seed", "'-4' is not an integer of at least 0"]),
        (["profile", "a:b"], ["--batch"]),
        ([], ["the following arguments are required: COMMAND"]),
    ],
)
def test_arguments_that_are_refused(
    words: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    refused(*words)
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("fastnet")
    for part in parts:
        assert part in message


def test_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fastnet.cli.explain.run", stop)
    assert main(["explain", "a:b"]) == 130


def test_help_imports_nothing_that_takes_long() -> None:
    run = """
import contextlib, io, sys
from fastnet.cli import main
from tests.subprocesses import run_python
for words in (["--help"], *([name, "--help"] for name in sys.argv[1:])):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main(words)
print(sorted({module.partition(".")[0] for module in sys.modules}))
"""
    done = run_python("-c", run, *COMMANDS)
    slow = {"torch", "tensorflow", "keras", "numpy", "sklearn", "tqdm", "rich", "matplotlib"}
    assert slow.isdisjoint(eval(done.stdout))


@pytest.mark.parametrize(
    ("words", "status", "out", "err"),
    [
        (["explain", "nowhere.py:network"], 2, "", "fastnet: there is no file 'nowhere.py'.\n"),
        (["--version"], 0, f"fastnet {fastnet.__version__}\n", ""),
    ],
)
def test_as_a_module(words: list[str], status: int, out: str, err: str) -> None:
    done = run_python("-m", "fastnet", *words)
    assert (done.returncode, done.stdout, done.stderr) == (status, out, err)
