"""Ranks that would train by different ops, or on different numbers of batches, raise an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.utils.data import DataLoader, DistributedSampler

import fastnet
from fastnet import distributed
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.meta import Fuse
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.ranks import ranks

pytestmark = pytest.mark.slow


def build(rate: float = 0.1, parallel: Any = "ddp") -> Any:
    torch.manual_seed(0)
    return fastnet.build(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)),
        lambda parameters: torch.optim.SGD(parameters, rate),
        model_name="net",
        parallel=parallel,
    )


def network_of(model: Any, *more: Any, merge: int = 1, **settings: Any) -> Any:
    update = UpdateOp(model, "loss", merge_grad=merge)
    loss = MeanSquaredError(("y", "t"), "loss")
    return fastnet.Network([*more, ModelOp(model, "x", "y"), loss, update], **settings)


def batch(count: int = 4, seed: int = 0) -> dict[str, Any]:
    source = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(count, 3, generator=source),
        "t": torch.randn(count, 1, generator=source),
    }


def double(value: Any) -> Any:
    return value * 2


def frozen(rank: int) -> Any:
    model = build(parallel="fsdp")
    model[0].bias.requires_grad_(rank == 0)
    return model


# What each of two ranks makes, and a part of what the error says of rank 1.
DIFFERENT: dict[str, tuple[Callable[[int], Any], str]] = {
    "an op": (lambda rank: network_of(build(), *[LambdaOp(double, "x", "x")] * rank), "LambdaOp"),
    "an inner op": (
        lambda rank: network_of(build(), Fuse([LambdaOp(double, "x", ["x", "z"][rank])])),
        "outputs ['z']",
    ),
    "merged steps": (lambda rank: network_of(build(), merge=2 + rank), "'merge_grad': 3"),
    "a rate": (lambda rank: network_of(build(0.1 + rank)), "SGD of model 'net' with the rate 1.1"),
    "frozen weights": (lambda rank: network_of(frozen(rank)), "torch.float32, frozen"),
}


@pytest.mark.parametrize("what", list(DIFFERENT))
def test_different_ops_raise_on_every_rank(what: str) -> None:
    for error, usable in ranks(2)(open_different, what):
        assert error.startswith("The ranks would train by different ops: rank 0 has ")
        assert DIFFERENT[what][1] in error.partition("but rank 1 has ")[2]
        assert usable


def open_different(what: str) -> Any:
    network = DIFFERENT[what][0](dist.get_rank())
    error = ""
    try:
        with network("train", 1):
            pass
    except ValueError as raised:
        error = str(raised)
    with network("eval", 1):
        return error, "loss" in network.run_step(batch())


def test_only_training_of_models_that_communicate_waits() -> None:
    """Rank 0 alone enters for everything else."""
    assert ranks(2)(enter_alone) == ["done"] * 2


def enter_alone() -> str:
    network, alone = network_of(build()), network_of(build(parallel=None))
    if dist.get_rank() == 0:
        for mode in ("eval", "test", "infer"):
            with network(mode, 1):
                network.run_step(batch())
        with network("train", 1, warmup=True):
            network.run_step(batch())
        with alone("train", 1):
            alone.run_step(batch())
        distributed.init(compare_ranks=False)
        with network("train", 1):
            pass
        distributed.init()
    dist.barrier()
    return "done"


def test_loaders_of_different_lengths() -> None:
    for error, steps in ranks(2)(transform_unevenly):
        assert error.startswith("The loaders of the ranks have [2, 3] batches, but in training")
        assert steps == 2


def transform_unevenly() -> Any:
    network = network_of(build())
    batches = [batch(seed=step) for step in range(2 + dist.get_rank())]
    error = ""
    try:
        network.transform(batches, mode="train")
    except ValueError as raised:
        error = str(raised)
    assert len(network.transform(batches, mode="eval")) == len(batches)
    return error, len(network.transform(batches[:2], mode="train"))


def test_samplers_get_the_epoch() -> None:
    assert ranks(2)(epochs_of_sampler) == [[1, 2, 3]] * 2


def epochs_of_sampler() -> list[int]:
    network, rows = network_of(build()), batch(8)
    data = [{key: value[place] for key, value in rows.items()} for place in range(8)]
    sampler = DistributedSampler(data)  # type: ignore[arg-type,var-annotated]
    loader = DataLoader(data, batch_size=2, sampler=sampler)  # type: ignore[arg-type,var-annotated]
    seen = []
    for epoch in (1, 2, 3):
        network.transform(loader, mode="train", epoch=epoch)
        seen.append(sampler.epoch)
    return seen


def test_join_of_uneven_ranks() -> None:
    """Equal to the hand-written loop in Join."""
    for weights, expected in ranks(2)(join_unevenly):
        assert all(map(torch.equal, weights, expected))


def join_unevenly() -> Any:
    rank = dist.get_rank()
    batches = [batch(seed=step + 10 * rank) for step in range(2 + 2 * rank)]
    model = build()
    network = network_of(model)
    with network("train", 1), Join([model]):
        for one in batches:
            network.run_step(one)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    other = nn.parallel.DistributedDataParallel(plain)
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    with Join([other]):
        for one in batches:
            optimizer.zero_grad()
            ((other(one["x"]) - one["t"]) ** 2).mean().backward()
            optimizer.step()
    return [[value.detach() for value in each.parameters()] for each in (model, other)]


@pytest.mark.parametrize("blocks", [(), nn.Linear])
def test_fsdp_trains_after_an_evaluation(blocks: Any) -> None:
    """Its outermost module keeps gathered parameters after a forward pass alone."""
    for weights, expected in ranks(2)(train_and_evaluate, blocks):
        assert all(map(torch.equal, weights, expected))


def train_and_evaluate(blocks: Any) -> Any:
    weights = []
    for evaluates in (False, True):
        torch.manual_seed(0)
        model = fastnet.build(
            lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)),
            "adam",
            parallel="fsdp",
            blocks=blocks,
        )
        network = network_of(model, merge=2)
        for epoch in (1, 2, 3):
            with network("train", epoch):
                network.run_step(batch(seed=epoch))
            if evaluates:
                network.transform(batch(), mode="eval")
                assert network.explain("train") is not None
        weights.append([value.full_tensor() for value in model.state_dict().values()])
    return weights
