"""Steps that Inductor has compiled are those of a hand-written loop."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor import config as inductor

from fastnet import CompileOptions
from fastnet.network import TorchNetwork
from fastnet.op.tensorop.model import ModelOp
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    Pair,
    batches,
    built,
    captured,
    mlp,
    network_of,
)

pytestmark = pytest.mark.slow

by_inductor = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="Inductor needs a C++ compiler"
)


@by_inductor
def test_random_numbers_with_and_without_those_of_torch() -> None:
    settings = inductor.shallow_copy_dict()
    runs: dict[Any, Any] = {}
    for label, compile in (
        ("eager", False),
        ("same", CompileOptions(fallback_random=True)),
        ("own", CompileOptions()),
        ("again", CompileOptions()),
    ):
        network = network_of(built(lambda: mlp(0.5)), compile)
        torch.manual_seed(7)
        with network("train", 1):
            runs[label] = [network.run_step(batch)["loss"] for batch in batches(10)]
    torch.testing.assert_close(runs["eager"], runs["same"], rtol=1e-5, atol=1e-6)
    assert runs["own"] == runs["again"]
    assert runs["own"] != runs["eager"]
    network = network_of(built(lambda: mlp(0.5), lambda ps: torch.optim.SGD(ps, lr=0.0)), True)
    (batch,) = batches(1)
    with network("train", 1):
        losses = {network.run_step(batch)["loss"].item() for _ in range(8)}
    assert captured(network) == 1
    assert len(losses) > 6
    assert inductor.shallow_copy_dict() == settings


_IN_A_PROCESS = """
from tests.network.torch.compiled.steps import batches, built, captured, network_of
from torch._dynamo.utils import counters

network = network_of(built(), True)
with network("train", 1):
    for size in (8, 8, 5, 7):
        network.run_step(batches(1, size)[0])
assert captured(network) == 2
print({name: count for name, count in counters["inductor"].items() if "fxgraph" in name})
"""


@by_inductor
def test_a_second_process_finds_programs_on_disk(tmp_path: Path) -> None:
    told = [
        subprocess.run(
            [sys.executable, "-c", _IN_A_PROCESS],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()[-1]
        for _ in range(2)
    ]
    assert told == ["{'fxgraph_cache_miss': 2}", "{'fxgraph_cache_hit': 2}"]


def test_a_backend_of_torch_by_its_name() -> None:
    pair = Pair(optimizer=OPTIMIZERS["adam"], compile=CompileOptions(backend="aot_eager"))
    with pair.network("train", 1):
        for batch in batches(10):
            pair.step(batch)
    assert captured(pair.network) == 1
    pair.assert_same_weights()


@by_inductor
def test_products_above_and_below_the_size_of_loops() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(16, 128), nn.Linear(128, 64, bias=False)))
    network = TorchNetwork(ModelOp(model, "x", "y"), compile=True)
    x = torch.randn(8, 16)
    with network("infer", 1), torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(network.run_step({"x": x})["y"], model(x))
    assert captured(network) == 1


@by_inductor
def test_a_label_out_of_range_is_an_error_that_changes_nothing() -> None:
    model = built(lambda: torch.nn.Linear(6, 3))
    network = network_of(model, CompileOptions())
    (batch,) = batches(1)
    with network("train", 1):
        for _ in range(3):  # The second is verified, and the third timed.
            network.run_step(batch)
        assert [trace.fallback for trace in network.traces] == [None]
        before = copy.deepcopy(model.state_dict())
        for label in (3, -7):
            wrong = batch["y"].clone()
            wrong[2] = label
            with pytest.raises(RuntimeError) as caught:
                network.run_step({"x": batch["x"], "y": wrong})
            assert any("eager=True" in note for note in caught.value.__notes__)
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), name
        network.run_step(batch)
