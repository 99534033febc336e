"""Models spread over GPUs: several over NCCL, where there are several, and one over gloo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

import fastnet
from tests.network.programs import supervised
from tests.network.torch.parallel_programs import Program, data, full_states, joined
from tests.ranks import ranks

SEVERAL = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


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
    (model,) = program.make()
    optimizer = program.optimizer(model.parameters())
    for step, parts in enumerate(data(4, world)):
        whole_batch = joined(parts)
        (cross_entropy(model(whole_batch["x"]), whole_batch["t"]) / merge).backward()
        if (step + 1) % merge == 0:
            optimizer.step()
            optimizer.zero_grad()
    found: dict[str, torch.Tensor] = model.state_dict()
    return found


@SEVERAL
@pytest.mark.parametrize("merge", [1, 2])
@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_each_rank_has_a_gpu_of_its_own(engine: str, merge: int) -> None:
    wanted = expected(2, merge)
    for rank, (states, places) in enumerate(ranks(2, "nccl")(train, engine, None, merge)):
        assert places == [f"cuda:{rank}"] * 2
        for name, value in wanted.items():
            torch.testing.assert_close(states[0][name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("merge", [1, 2])
def test_two_ranks_on_one_gpu(merge: int) -> None:
    wanted = expected(2, merge)
    for states, places in ranks(2)(train, "ddp", "cuda:0", merge):
        assert places == ["cuda:0"] * 2
        for name, value in wanted.items():
            torch.testing.assert_close(states[0][name], value, rtol=1e-3, atol=1e-5)
