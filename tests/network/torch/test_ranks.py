"""Processes that train together run the same ops, as often, on samples, or hear what is wrong."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.utils.data import DataLoader, DistributedSampler

import fastnet
from fastnet import distributed
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.meta import Fuse
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.slicer import AxisSlicer
from tests.launched import ended, in_ranks, rank_count
from tests.ranks import ranks

pytestmark = pytest.mark.slow

ADVICE = (
    "Give each rank as many batches: a DistributedSampler does, and drop_last=True leaves out what "
    "is left over."
)


def build(width: int = 4, rate: float = 0.1, name: str = "net", parallel: Any = "ddp") -> Any:
    torch.manual_seed(0)
    return fastnet.build(
        lambda: nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1)),
        lambda parameters: torch.optim.SGD(parameters, rate),
        model_name=name,
        parallel=parallel,
    )


def network_of(model: Any, *more: Any, merge: int = 1, **settings: Any) -> Any:
    return fastnet.Network(
        [
            *more,
            ModelOp(model, "x", "y"),
            MeanSquaredError(("y", "t"), "loss"),
            UpdateOp(model, "loss", merge_grad=merge),
        ],
        **settings,
    )


def samples(count: int, seed: int = 0) -> list[dict[str, Any]]:
    source = torch.Generator().manual_seed(seed)
    return [
        {"x": torch.randn(3, generator=source), "t": torch.randn(1, generator=source)}
        for _ in range(count)
    ]


def batch(count: int = 4, seed: int = 0) -> dict[str, Any]:
    parts = samples(count, seed)
    if not parts:
        return {"x": torch.ones(0, 3), "t": torch.ones(0, 1)}
    return {key: torch.stack([one[key] for one in parts]) for key in ("x", "t")}


# --------------------------------------------------------------------------- the same ops


def double(value: Any) -> Any:
    return value * 2


# what each of two ranks makes, and what is told of it
DIFFERENT: dict[str, tuple[Callable[[int], Any], str, str]] = {
    "an op": (
        lambda rank: network_of(build(), *[LambdaOp(double, "x", "x")] * rank),
        "ModelOp (op 0, inputs ['x'], outputs ['y']), model 'net'",
        "LambdaOp (op 0, inputs ['x'], outputs ['x'])",
    ),
    "an op inside of another": (
        lambda rank: network_of(
            build(), Fuse([LambdaOp(double, "x", "x"), LambdaOp(double, "x", ["x", "z"][rank])])
        ),
        "Fuse (op 0, inputs ['x'], outputs ['x'])",
        "Fuse (op 0, inputs ['x'], outputs ['x', 'z'])",
    ),
    "merged steps": (
        lambda rank: network_of(build(), merge=2 + rank),
        "UpdateOp (op 2, inputs ['loss']), model 'net', merge_grad 2, defer False",
        "UpdateOp (op 2, inputs ['loss']), model 'net', merge_grad 3, defer False",
    ),
    "a rate": (
        lambda rank: network_of(rate_of(0.1 + rank)),
        "SGD of model 'net', group 0, {'dampening': 0, 'differentiable': False, 'foreach': None, "
        "'fused': None, 'lr': 0.1, ",
        "SGD of model 'net', group 0, {'dampening': 0, 'differentiable': False, 'foreach': None, "
        "'fused': None, 'lr': 1.1, ",
    ),
    "a slicer": (
        lambda rank: network_of(
            build(), slicers=[AxisSlicer(0, ["x", "t"], ["y", "loss"], "train")] * rank
        ),
        "model 'net', Sequential, spread by 'ddp'",
        "AxisSlicer (slices ['x', 't'], un-slices ['y', 'loss'])",
    ),
    "frozen weights": (
        lambda rank: network_of(frozen(rank)),
        "'0.bias' of model 'net', (4,), torch.float32, trained",
        "'0.bias' of model 'net', (4,), torch.float32, frozen",
    ),
}


def rate_of(rate: float) -> Any:
    model = build()
    for group in model.current_optimizer.param_groups:
        group["lr"] = rate
    return model


def frozen(rank: int) -> Any:
    model = build(parallel="fsdp")
    model[0].bias.requires_grad_(rank == 0)
    return model


class TestTheSameOps:
    @pytest.mark.parametrize("what", list(DIFFERENT))
    def test_what_differs_is_named_on_every_rank(self, what: str) -> None:
        _, first, second = DIFFERENT[what]
        for error, usable in ranks(2)(open_different, what):
            start, rest = error.split(", but rank 1 has ")
            assert start.startswith(f"The ranks are to train by different ops: rank 0 has {first}")
            assert rest.startswith(second)
            assert rest.endswith(
                "Make the network by the same code on each rank, and open it alike; "
                "fastnet.distributed.init(compare_ranks=False) turns this check off."
            )
            assert usable

    def test_another_epoch(self) -> None:
        for error in ranks(3)(open_other_epochs):
            assert error.startswith(
                "The ranks are to train by different ops: rank 0 has mode 'train', epoch 1, but "
                "rank 2 has mode 'train', epoch 2. "
            )

    def test_one_small_collective_only_where_gradients_are(self) -> None:
        for counts in ranks(2)(collectives_of_openings):
            assert counts == {
                "train": ["all_gather"],
                "warmup": [],
                "eval": [],
                "infer": [],
                "train of what nothing spreads": [],
                "train, not compared": [],
            }

    def test_nothing_is_asked_in_one_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        network = network_of(build(parallel=None))
        with network(mode="train", epoch=1):
            assert network._context.runner.ranks is None
            assert network._context.bound is not None


def open_different(what: str) -> Any:
    rank = rank_count()[0]
    network = DIFFERENT[what][0](rank)
    error = ""
    try:
        with network(mode="train", epoch=1):
            pass
    except ValueError as raised:
        error = str(raised)
    with network(mode="eval", epoch=1):
        done = network.run_step(batch())
    return error, "loss" in done


def open_other_epochs() -> str:
    rank, _ = rank_count()
    network = network_of(build())
    try:
        with network(mode="train", epoch=1 + rank // 2):
            return ""
    except ValueError as error:
        return str(error)


def collectives_of_openings() -> dict[str, list[str]]:
    networks = {name: network_of(build(parallel=parallel)) for name, parallel in BOTH.items()}
    found: dict[str, list[str]] = {}

    def opened(name: str, network: Any, **settings: Any) -> None:
        with counted() as calls, network(**{"epoch": 1, **settings}):
            pass
        found[name] = calls

    for mode in ("train", "eval", "infer"):
        opened(mode, networks["spread"], mode=mode)
    opened("warmup", networks["spread"], mode="train", warmup=True)
    opened("train of what nothing spreads", networks["alone"], mode="train")
    distributed.init(compare_ranks=False)
    opened("train, not compared", networks["spread"], mode="train")
    distributed.init()
    return found


BOTH = {"spread": "ddp", "alone": None}


@contextlib.contextmanager
def counted() -> Any:
    """Count what is communicated, by torch's own names for it."""
    calls: list[str] = []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        yield calls
    calls += [
        event.name.removeprefix("gloo:")
        for event in profile.events()
        if event.name.startswith("gloo:")
    ]


# --------------------------------------------------------------------------- as many steps


class TestAsManySteps:
    @pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
    def test_more_batches_on_one_rank(self, parallel: str) -> None:
        """Its third step would wait for ever."""
        text = (
            "RankError: Rank 0 has left its training after 2 steps, but rank 1 has begun step 3. "
            f"In training each step waits for all ranks. {ADVICE}"
        )
        for one in ended(2, trains_unevenly, parallel, 1, seconds=100):
            assert text in str(one.error)

    def test_more_batches_where_nothing_waits(self) -> None:
        """Merged steps communicate in the last one only: the end of the opening shows it."""
        errors = [str(one.error) for one in ended(2, trains_unevenly, "ddp", 4, seconds=100)]
        for error in errors:
            assert "RankError: Rank " in error
            assert "has left its training after " in error
            assert ADVICE in error

    def test_as_many_batches(self) -> None:
        assert in_ranks(2, trains_evenly) == [3, 3]

    @pytest.mark.parametrize("count", [2, 3])
    def test_loaders_of_transform(self, count: int) -> None:
        """Refused on each rank before the first step, and the network goes on."""
        expected = [2] * (count - 1) + [3]
        for error, steps in ranks(count)(transforms_unevenly):
            assert error == (
                f"The loaders of the ranks have {expected} batches, but in training each step "
                f"waits for all ranks. {ADVICE}"
            )
            assert steps == 2

    def test_joined_by_the_program(self) -> None:
        """DistributedDataParallel's own way, as in a loop by hand."""
        for weights, by_hand in ranks(2)(joins):
            for one, other in zip(weights, by_hand, strict=True):
                assert torch.equal(one, other)


def trains_unevenly(parallel: str, merge: int) -> None:
    with distributed.run():
        network = network_of(build(parallel=parallel), merge=merge)
        with network(mode="train", epoch=1):
            for step in range(2 + distributed.rank()):
                network.run_step(batch(seed=step))


def trains_evenly() -> int:
    with distributed.run():
        network = network_of(build())
        for epoch in range(1, 4):
            with network(mode="train", epoch=epoch):
                for step in range(2):
                    network.run_step(batch(seed=step))
            if distributed.is_main():
                with network(mode="eval", epoch=epoch):
                    network.run_step(batch())
    return epoch


def transforms_unevenly() -> Any:
    rank, count = rank_count()
    network = network_of(build())
    batches = [batch(seed=step) for step in range(3 if rank == count - 1 else 2)]
    error = ""
    try:
        network.transform(batches, mode="train")
    except ValueError as raised:
        error = str(raised)
    # in eval nothing is communicated: each has as many as it likes
    assert len(network.transform(batches, mode="eval")) == len(batches)
    return error, len(network.transform(batches[:2], mode="train"))


def joins() -> Any:
    rank, _ = rank_count()
    batches = [batch(seed=step + 10 * rank) for step in range(2 + 2 * rank)]
    model = build()
    network = network_of(model)
    with network(mode="train", epoch=1), Join([model]):
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


# --------------------------------------------------------------------------- samples


class TestSamples:
    def test_a_batch_without_any_on_one_rank(self) -> None:
        text = (
            "ValueError: The batch of rank 1 has no samples: 't' is of the shape (0, 1). The mean "
            "of a loss over nothing is NaN, which all ranks would be updated by. Give each rank "
            "samples, or leave the batch out on all of them (drop_last=True)."
        )
        first, second = ended(2, trains_on_nothing, seconds=100)
        assert text in str(second.error)
        assert f"RankError: Rank 1 has failed with {text}" in str(first.error)

    def test_the_network_goes_on(self) -> None:
        assert ranks(2)(goes_on_after_nothing) == [True, True]


def trains_on_nothing() -> None:
    with distributed.run():
        network = network_of(build())
        with network(mode="train", epoch=1):
            network.run_step(batch(4))
            network.run_step(batch(4 * (1 - distributed.rank())))


def goes_on_after_nothing() -> bool:
    network = network_of(build())
    with network(mode="train", epoch=1):
        with pytest.raises(ValueError, match=r"has no samples: 't' is of the shape \(0, 1\)"):
            network.run_step(batch(0))
        done = network.run_step(batch(4))
    with network(mode="eval", epoch=1):
        network.run_step(batch(0))
    return bool(torch.isfinite(done["loss"]))


# --------------------------------------------------------------------------- loaders


class TestLoaders:
    @pytest.mark.parametrize("count", [2, 3])
    def test_a_distributed_sampler(self, count: int) -> None:
        """Each rank has its own samples, in the order of the epoch, as in a loop by hand."""
        for rank, (seen, by_hand, bars) in enumerate(ranks(count)(transforms_samples)):
            assert seen == by_hand
            assert seen[0] != seen[1]
            assert bars == ([True] if rank == 0 else [False])


def transforms_samples() -> Any:
    rank, count = rank_count()
    data = [{"x": torch.full((3,), float(n)), "t": torch.ones(1)} for n in range(6 * count)]

    def loader() -> Any:
        sampler = DistributedSampler(data, count, rank, shuffle=True)
        return DataLoader(data, 2, sampler=sampler)

    own, network = loader(), network_of(build())
    bar = io.StringIO()
    with contextlib.redirect_stderr(bar):
        seen = [
            [
                one["x"][:, 0].tolist()
                for one in network.transform(own, "train", epoch, progress=True)
            ]
            for epoch in (1, 2)
        ]
    other, by_hand = loader(), []
    for epoch in (1, 2):
        other.sampler.set_epoch(epoch)
        by_hand.append([one["x"][:, 0].tolist() for one in other])
    return seen, by_hand, ["transform" in bar.getvalue()]


# --------------------------------------------------------------------------- explained


class TestExplained:
    def test_how_models_are_spread(self) -> None:
        for rank, told in enumerate(ranks(2)(explains)):
            own = [13, 8][rank]
            assert told == {
                "ddp": ", in DistributedDataParallel over 2 processes",
                "fsdp": f", sharded by FSDP2 over 2 processes, {own} of 21 parameters in this one",
                None: "",
            }

    def test_nothing_is_said_in_one_process(self) -> None:
        explanation = network_of(build(parallel=None)).explain()
        assert explanation.parallelism == {}
        assert explanation.to_dict()["parallelism"] == {}
        assert "processes" not in str(explanation)


def explains() -> dict[Any, str]:
    told = {}
    for parallel in ("ddp", "fsdp", None):
        explanation = network_of(build(parallel=parallel)).explain()
        lines = [" ".join(line.split()) for line in str(explanation).splitlines()]
        text = " ".join(lines)
        start = text.index("model 'net' with SGD") + len("model 'net' with SGD")
        told[parallel] = text[start : text.index(" Ops (", start)].partition(")")[2].rstrip()
        assert set(explanation.parallelism) == ({"net"} if parallel else set())
    return told


# --------------------------------------------------------------------------- profiled


class TestProfiled:
    def test_what_is_communicated_has_rows(self) -> None:
        for told in ranks(2)(profiles):
            (ddp,) = told["ddp"]
            # one bucket in each of three steps
            assert ddp[:3] == ("gloo:all_reduce", 3, False)
            assert ddp[3]
            names = {name for name, *_ in told["fsdp"]}
            assert "gloo:all_gather" in " ".join(names) or "_allgather" in " ".join(names)
            assert told["eval"] == told["nothing is skipped"] == told[None] == []

    def test_there_are_none_in_one_process(self) -> None:
        made = fastnet.profile(network_of(build(parallel=None)), batch(), steps=3)
        assert communicated(made) == []


def communicated(made: Any) -> list[Any]:
    return [
        (row.name, row.count, row.in_step, row.mean > 0 and row.name in str(made))
        for row in made.rows
        if row.kind == "communication"
    ]


def profiles() -> dict[Any, Any]:
    told: dict[Any, Any] = {}
    for parallel in ("ddp", "fsdp", None):
        network = network_of(build(parallel=parallel))
        made = fastnet.profile(network, batch(), steps=4)
        told[parallel] = communicated(made)
        assert type(made).from_dict(made.to_dict()).rows == made.rows
    network = network_of(build())
    told["eval"] = communicated(fastnet.profile(network, batch(), mode="eval", steps=3))
    told["nothing is skipped"] = communicated(fastnet.profile(network, batch(), steps=3, skip=0))
    return told
