"""`fastnet explain` writes what `network.explain` returns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from fastnet.cli import main
from fastnet.cli.loading import load_network


@pytest.fixture
def explanation(folder: Path) -> Any:
    network = load_network("networks:make_network")
    return network.explain(mode="infer", epoch=3, ds_id="scans", desired_output_keys={"y"})


OPENING = ["--mode", "infer", "--epoch", "3", "--ds-id", "scans", "--outputs", "y"]


def test_text(explanation: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "networks.py:make_network", *OPENING]) == 0
    printed = capsys.readouterr().out
    assert printed == f"{explanation}\n"
    assert "'nobody_reads_this' is neither read nor returned" in " ".join(printed.split())
    assert "(y -> z)" not in printed  # not in this mode


@pytest.mark.parametrize("form", ["json", "mermaid", "dot"])
def test_forms(form: str, explanation: Any, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", "networks.py:make_network", *OPENING]
    assert main([*command, "--format", form]) == 0
    written = capsys.readouterr().out
    if form == "json":
        assert json.loads(written) == explanation.to_dict()
    else:
        assert written == getattr(explanation, f"to_{form}")()


def test_a_network_that_could_not_be_opened(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "clash.py").write_text(
        "from fastnet.network.torch import TorchNetwork\n"
        "from fastnet.op.tensorop import LambdaOp\n"
        "from fastnet.slicer import AxisSlicer\n"
        "network = TorchNetwork(\n"
        "    [LambdaOp(lambda x: x, inputs='x', outputs='y')],\n"
        "    slicers=AxisSlicer(axis=0, slice='x'),\n"
        ")\n"
    )
    assert main(["explain", "clash.py:network"]) == 1
    assert "no slicer unslices" in " ".join(capsys.readouterr().out.split())


def test_a_reader_that_has_enough(folder: Path) -> None:
    """What it is piped into may close the pipe, as `head` does."""
    # one that no framework has to be imported for
    (folder / "plain.py").write_text(
        "from fastnet import BaseNetwork\n"
        "from fastnet.op.tensorop import LambdaOp\n"
        "network = BaseNetwork('torch', None, [LambdaOp(fn=len, inputs='x', outputs='y')])\n"
    )
    command = [sys.executable, "-m", "fastnet", "explain", "plain:network"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(timeout=600) == 1
