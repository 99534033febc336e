"""Programs that torchrun starts, as users start them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

LIMIT = 300  # seconds, after which something hangs

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch import nn

import fastnet
from fastnet.backend.torch.wrappers import engine_of
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp

if "init" in sys.argv:
    dist.init_process_group("gloo")
model = fastnet.build(lambda: nn.Linear(2, 1), "adam", model_name="m")
network = fastnet.Network([
    ModelOp(model, "x", "y"),
    LambdaOp(lambda y: (y**2).mean(), "y", "loss"),
    UpdateOp(model, "loss"),
])
torch.manual_seed(dist.get_rank())
with network(mode="train", epoch=1):
    for _ in range(3):
        network.run_step({"x": torch.randn(4, 2)})
weights = [one.tolist() for one in model.parameters()]
# one write, as the processes share the line
sys.stdout.write(f"{engine_of(model)} on {network.device}: {weights}\\n")
dist.destroy_process_group()
"""


def torchrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    return subprocess.run(
        [*launch, str(program), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "FASTNET_DEVICE": "cpu"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def test_models_are_spread_by_themselves(tmp_path: Path) -> None:
    run = torchrun(tmp_path, "init")
    assert run.returncode == 0, run.stderr
    first, second = run.stdout.splitlines()
    assert first.startswith("ddp on cpu: ")
    assert first == second


def test_a_group_that_was_not_initialised_is_an_error_of_every_process(tmp_path: Path) -> None:
    run = torchrun(tmp_path)
    assert run.returncode != 0
    text = "ValueError: This process is one of 2 of torchrun, but there is no process group"
    # torchrun ends the others when it sees that one has failed
    assert text in run.stderr
    assert run.stdout == ""
