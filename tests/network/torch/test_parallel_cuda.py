"""Models spread over GPUs: several over NCCL, where there are several, and one over gloo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import fastnet
from tests.network.programs import supervised
from tests.network.torch.parallel_programs import Program, data, full_states
from tests.ranks import ranks

SEVERAL = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
ONE = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def train(engine: str, device: str | None, merge: int) -> tuple[list[Any], list[str]]:
    program = Program()
    options: dict[str, Any] = {"blocks": nn.Linear} if engine == "fsdp" else {}
    built = fastnet.build(
        program.make()[0], program.optimizer, device=device, parallel=engine, **options
    )
    network = fastnet.Network(supervised(built, merge_grad=merge))
    rank = dist.get_rank()
    with network("train", 1):
        for parts in data(4, dist.get_world_size()):
            network.run_step(parts[rank])
    states = full_states([built])
    places = [str(network.device), str(next(built.parameters()).device)]
    return [{name: one.cpu() for name, one in state.items()} for state in states], places


def expected(world: int, merge: int) -> dict[str, torch.Tensor]:
    program = Program()
    program.merge = merge
    models = program.make()
    optimizers = [program.optimizer(models[0].parameters())]
    for step, parts in enumerate(data(4, world)):
        program.in_one(models, optimizers, parts, step)
    found: dict[str, torch.Tensor] = models[0].state_dict()
    return found


@pytest.mark.parametrize("merge", [1, 2])
@pytest.mark.parametrize(
    ("engine", "device"),
    [
        pytest.param("ddp", None, marks=SEVERAL),
        pytest.param("fsdp", None, marks=SEVERAL),
        pytest.param("ddp", "cuda:0", marks=ONE),
    ],
)
def test_equals_one_process(engine: str, device: str | None, merge: int) -> None:
    """Each rank has a GPU of its own over NCCL, or two share one over gloo."""
    wanted = expected(2, merge)
    group = ranks(2, "gloo" if device else "nccl")
    for rank, (states, places) in enumerate(group(train, engine, device, merge)):
        assert places == [device or f"cuda:{rank}"] * 2
        for name, value in wanted.items():
            torch.testing.assert_close(states[0][name], value, rtol=1e-3, atol=1e-5)
