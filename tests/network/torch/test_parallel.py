"""Distributed training of torch networks, on two and three ranks over gloo.

`parallel_programs` has the programs whose weights are compared with hand-written loops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, DistributedSampler

import fastnet
from fastnet.backend.torch.wrappers import parallel_type, unwrap_all
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.gradient import GradientOp, Watch
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.meta import Fuse
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.programs import mlp, seeded, sgd, supervised
from tests.network.torch import parallel_programs
from tests.network.torch.parallel_programs import (
    Program,
    build,
    data,
    full_states,
    joined,
    wrap,
)
from tests.ranks import ranks

PROGRAMS = [
    cls
    for cls in vars(parallel_programs).values()
    if isinstance(cls, type) and issubclass(cls, Program)
]
CASES = [
    pytest.param(cls, engine, world, id=f"{cls.__name__}-{engine}-{world}", marks=marks)
    for world, marks in ((2, []), (3, [pytest.mark.slow]))
    for cls in PROGRAMS
    for engine in cls.engines
]
EITHER = pytest.mark.parametrize("engine", ["ddp", "fsdp"])

State = list[dict[str, torch.Tensor]]


def distance(one: State, other: State, but: str = " ") -> float:
    """Return the largest difference between tensors of the same names."""
    assert [list(each) for each in one] == [list(each) for each in other]
    return max(
        float((mine[name].double() - theirs[name].double()).abs().max())
        for mine, theirs in zip(one, other, strict=True)
        for name in mine
        if but not in name
    )


@pytest.mark.parametrize(("program", "engine", "world"), CASES)
def test_programs(program: type[Program], engine: str, world: int) -> None:
    """Equal to the loop under the engine, and to one process on the joined batches."""
    results = ranks(world)(parallel_programs.compare, program.__name__, engine)
    first = results[0]
    for result in results:
        for by in ("build", "user"):
            # Statistics are a rank's own until those of rank 0 are broadcast.
            assert distance(result[by], first["build"], but="running") == 0.0
            if program.has_loop:
                exact = program.exact and world == 2
                assert distance(result[by], result["loop"]) <= (0.0 if exact else 1e-6)
    if program.has_one:
        assert distance(first["build"], first["one"]) <= program.distance
    models = full_states(program().make())
    assert distance(first["build"][: len(models)], models, but="running") > 1e-3


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the collectives of this process by their names."""
    names: Counter[str] = Counter()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        yield names
    names.update(one.name for one in found.events() or [] if one.name.startswith("c10d::"))


def reductions(names: Counter[str]) -> int:
    kinds = ("allreduce_", "_reduce_scatter_base_", "reduce_scatter_")
    return sum(names[f"c10d::{kind}"] for kind in kinds)


def count_steps(name: str, engine: str) -> tuple[list[Counter[str]], list[Counter[str]]]:
    """Count the collectives of each step with fastnet, and in a hand-written loop."""
    program: Program = getattr(parallel_programs, name)()
    rank = dist.get_rank()
    batches = data(4, dist.get_world_size())
    network = fastnet.Network(program.ops(build(program, engine)))
    models = [wrap(one, engine, program) for one in program.make()]
    optimizers = [program.optimizer(one.parameters()) for one in models]
    own, by_hand = [], []
    with network("train", 1):
        for step, parts in enumerate(batches):
            with counted() as names:
                network.run_step(parts[rank])
            own.append(names)
            with counted() as names:
                program.by_hand(models, optimizers, parts[rank], step)
            by_hand.append(names)
    return own, by_hand


@EITHER
def test_a_plain_step_communicates_what_the_loop_does(engine: str) -> None:
    for own, by_hand in ranks(2)(count_steps, "Program", engine):
        assert own == by_hand
        assert all(map(reductions, own))


@EITHER
def test_merged_steps_communicate_in_the_last_one(engine: str) -> None:
    for own, _ in ranks(2)(count_steps, "Merged", engine):
        assert [reductions(names) > 0 for names in own] == [False, True] * 2


def run_alone() -> Any:
    """Let one rank evaluate, which must not wait for the other."""
    model = seeded(parallel_programs.Normed)
    network = fastnet.Network(supervised(fastnet.build(lambda: model, sgd(), parallel="ddp")))
    alone = fastnet.Network(supervised(fastnet.build(mlp, sgd(), parallel=None)))
    ((batch,),) = data(1, 1)
    with network("train", 1):
        network.run_step(batch)
    names: Counter[str] = Counter()
    if dist.get_rank() == 1:
        with counted() as names:
            for mode in ("eval", "test", "infer"):
                with network(mode, 1):
                    result = network.run_step(batch)
                assert torch.equal(result["y"], model.eval()(batch["x"]))
            with network("train", 1, warmup=True):
                network.run_step(batch)
            with alone("train", 1):
                alone.run_step(batch)
    dist.barrier()
    return names


def test_nothing_is_communicated_outside_of_training() -> None:
    assert ranks(2)(run_alone) == [Counter()] * 2


def train(model: Any, steps: int = 4, ops: Callable[[Any], list[Any]] = supervised) -> State:
    network = fastnet.Network(ops(model))
    with network("train", 1):
        for parts in data(steps, dist.get_world_size()):
            network.run_step(parts[dist.get_rank()])
    return full_states([model])


def averaged_by_op(engine: str) -> tuple[State, State]:
    """Update with gradients that an op of the program computes itself."""

    def ops(model: Any) -> list[Any]:
        *ops, _ = supervised(model)
        compute = LambdaOp(
            lambda loss: list(torch.autograd.grad(loss, list(model.parameters()))), "loss", "g"
        )
        return [*ops, compute, UpdateOp(model, "loss", gradients="g")]

    built = [fastnet.build(seeded(mlp), sgd(), parallel="ddp") for _ in range(2)]
    return train(built[0]), train(built[1], ops=ops)


def by_function(engine: str) -> tuple[State, State]:
    """Update with the functions that ops are made of."""
    model, other = (fastnet.build(seeded(mlp), sgd(), parallel="ddp") for _ in range(2))
    for parts in data(4, dist.get_world_size()):
        (loss,) = Program().losses([unwrap_all(model)], parts[dist.get_rank()])
        gradients = fastnet.backend.get_gradient(loss, list(model.parameters()))
        fastnet.backend.update_model(model, gradients)
    return train(other), full_states([model])


def after_failures(engine: str) -> tuple[State, State]:
    """Steps that raise on all ranks leave nothing behind."""
    options = {"blocks": nn.Linear} if engine == "fsdp" else {}
    smooth, rough = (
        fastnet.build(seeded(mlp), sgd(), parallel=engine, **options) for _ in range(2)
    )
    network = fastnet.Network(supervised(rough))
    for parts in data(4, dist.get_world_size()):
        batch = parts[dist.get_rank()]
        with pytest.raises(IndexError), network("train", 1):
            network.run_step({**batch, "t": torch.full((4,), 99)})
        with network("train", 1, warmup=True):
            network.run_step(batch)
        with network("train", 1):
            network.run_step(batch)
    return train(smooth), full_states([rough])


@pytest.mark.parametrize(
    ("function", "engine"),
    [
        (averaged_by_op, "ddp"),
        (by_function, "ddp"),
        (after_failures, "ddp"),
        (after_failures, "fsdp"),
    ],
)
def test_equals_plain_training(function: Callable[[str], Any], engine: str) -> None:
    for plain, other in ranks(2)(function, engine):
        assert distance(plain, other) <= 1e-6


def train_jointly(engine: str, make_body: Callable[[], nn.Module]) -> tuple[State, list[int]]:
    """Train two models with one optimizer; return how often each step broadcasts."""
    body = fastnet.build(seeded(make_body), None, parallel=engine)
    head = fastnet.build(
        seeded(mlp, 1),
        lambda parameters: torch.optim.SGD([*body.parameters(), *parameters], 0.1),
        parallel=engine,
    )
    network = fastnet.Network([ModelOp(body, "x", "x"), *supervised(head, clip_norm=0.1)])
    counts = []
    with network("train", 1):
        for parts in data(4, dist.get_world_size()):
            with counted() as names:
                network.run_step(parts[dist.get_rank()])
            counts.append(names["c10d::broadcast_"])
    return full_states([body, head]), counts


@EITHER
def test_one_optimizer_and_clipping_norm_over_two_models(engine: str) -> None:
    body, head = seeded(linear), seeded(mlp, 1)
    parameters = [*body.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.1)
    for parts in data(4, 2):
        batch = joined(parts)
        nn.functional.cross_entropy(head(body(batch["x"])), batch["t"]).backward()
        nn.utils.clip_grad_norm_(parameters, 0.1)
        optimizer.step()
        optimizer.zero_grad()
    for state, _ in ranks(2)(train_jointly, engine, linear):
        assert distance(state, full_states([body, head])) <= 1e-6


def linear() -> nn.Module:
    return nn.Linear(16, 16)


def normed() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 16))


def test_the_buffers_of_all_updated_models_are_broadcast() -> None:
    for _, counts in ranks(2)(train_jointly, "ddp", normed):
        # In the second step, DistributedDataParallel also broadcasts the order of its buckets.
        assert [counts[0], *counts[2:]] == [3, 3, 3]


def initial_weights(engine: str) -> State:
    return full_states([fastnet.build(seeded(mlp, dist.get_rank()), None, parallel=engine)])


@pytest.mark.parametrize("engine", ["ddp", "fsdp", "auto"])
def test_all_begin_with_the_weights_of_rank_0(engine: str) -> None:
    for state in ranks(2)(initial_weights, engine):
        assert distance(state, [seeded(mlp, 0).state_dict()]) == 0


def overflow(engine: str, merge: int) -> tuple[list[float], list[State]]:
    """Train with a scaled loss, which in one step is infinite on one rank."""
    options = {"blocks": nn.Linear} if engine == "fsdp" else {}
    model = fastnet.build(seeded(mlp), sgd(), mixed_precision="float16", parallel=engine, **options)
    network = fastnet.Network(supervised(model, merge_grad=merge))
    scales, states, rank = [], [], dist.get_rank()
    with network("train", 1):
        for step, parts in enumerate(data(4, dist.get_world_size())):
            factor = float("inf") if step == 2 and rank == 1 else 1.0
            network.run_step({**parts[rank], "x": parts[rank]["x"] * factor})
            scales.append(model.current_optimizer.scaler.get_scale())
            states.append(full_states([model]))
    return scales, states


@pytest.mark.parametrize("merge", [1, 2])
@EITHER
def test_all_ranks_agree_to_skip_an_update(engine: str, merge: int) -> None:
    (scales, states), other = ranks(2)(overflow, engine, merge)
    assert scales == other[0]
    assert distance(states[-1], other[1][-1]) == 0
    skipped = 1 + merge
    assert scales[skipped] == scales[skipped - 1] / 2
    assert distance(states[skipped], states[skipped - 1]) == 0
    assert distance(states[1], full_states([seeded(mlp)])) > 1e-3


def use(engine: str) -> Any:
    """Look at all that a network does with a model besides training it."""
    options = {"blocks": nn.Linear} if engine == "fsdp" else {}
    model = fastnet.build(seeded(mlp), "adam", model_name="m", parallel=engine, **options)
    run = ModelOp(model, {"input": "x"}, ["y", "h"], intermediate_layers="0")
    loss = CrossEntropy(("y", "t"), "loss", from_logits=True)
    network = fastnet.Network([run, loss, UpdateOp(model, "loss")])
    ((batch,),) = data(1, 1)
    seen = []
    for mode in ("train", "eval"):
        with network(mode, 1):
            result = network.run_step(batch)
        seen.append({one.training for one in model.modules()})
    shapes = tuple(result["y"].shape), tuple(result["h"].shape)
    text = str(network.explain("train"))
    return parallel_type(model), model.model_name, seen, shapes, "2 processes" in text


def counted_rows(step: int, rank: int) -> int:
    """Return how many rows of a batch count; in two steps of a window none."""
    return 0 if step in (4, 5) else (3 * step + 2 * rank) % 4


def train_by_weight(engine: str) -> State:
    """Train by batches of which some ranks count no row, and have NaN as their loss."""
    options = {"blocks": nn.Linear} if engine == "fsdp" else {}
    model = fastnet.build(seeded(mlp), sgd(), parallel=engine, **options)
    network = fastnet.Network(supervised(model, merge_grad=2, weight="count"))
    rank = dist.get_rank()
    with network("train", 1):
        for step, parts in enumerate(data(8, dist.get_world_size())):
            count = counted_rows(step, rank)
            batch = {key: one[: count or None] for key, one in parts[rank].items()}
            factor = 1.0 if count else float("nan")
            network.run_step({**batch, "x": batch["x"] * factor, "count": torch.tensor(count)})
    return full_states([model])


@EITHER
def test_weights_count_over_all_ranks(engine: str) -> None:
    model = seeded(mlp)
    optimizer = sgd()(model.parameters())
    steps = [
        [
            {key: one[: counted_rows(step, rank)] for key, one in part.items()}
            for rank, part in enumerate(parts)
        ]
        for step, parts in enumerate(data(8, 2))
    ]
    for first, second in zip(steps[::2], steps[1::2], strict=True):
        batch = joined([*first, *second])
        if len(batch["x"]):
            nn.functional.cross_entropy(model(batch["x"]), batch["t"]).backward()
            optimizer.step()
            optimizer.zero_grad()
    for state in ranks(2)(train_by_weight, engine):
        assert distance(state, full_states([model])) <= 1e-6


def skip_on_one_rank(engine: str) -> tuple[list[bool], list[State]]:
    """Train with a gradient that in one step is infinite on one rank."""
    options = {"blocks": nn.Linear} if engine == "fsdp" else {}
    model = fastnet.build(seeded(mlp), sgd(), parallel=engine, **options)
    reports = {"stepped": "stepped"}
    network = fastnet.Network(supervised(model, skip_nonfinite=True, outputs=reports))
    stepped, states, rank = [], [], dist.get_rank()
    with network("train", 1):
        for step, parts in enumerate(data(3, dist.get_world_size())):
            factor = float("inf") if step == 1 and rank == 1 else 1.0
            result = network.run_step({**parts[rank], "x": parts[rank]["x"] * factor})
            stepped.append(bool(result["stepped"]))
            states.append(full_states([model]))
    return stepped, states


@EITHER
def test_all_ranks_skip_a_gradient_that_is_not_finite(engine: str) -> None:
    for stepped, states in ranks(2)(skip_on_one_rank, engine):
        assert stepped == [True, False, True]
        assert distance(states[0], states[1]) == 0
        assert 1e-4 < distance(states[1], states[2]) < 1


def step_by_large_gradients(engine: str) -> bool:
    """Train with finite gradients whose squares overflow."""
    options = {"blocks": nn.Linear} if engine == "fsdp" else {}
    model = fastnet.build(seeded(mlp), sgd(1e-20), parallel=engine, **options)
    ops = [
        ModelOp(model, "x", "y"),
        LambdaOp(lambda y: 1e25 * y.mean(), "y", "loss"),
        UpdateOp(model, "loss", skip_nonfinite=True, outputs={"stepped": "stepped"}),
    ]
    with fastnet.Network(ops)("train", 1) as network:
        return bool(network.run_step({"x": torch.ones(4, 16)})["stepped"])


@EITHER
def test_large_gradients_are_finite(engine: str) -> None:
    assert ranks(2)(step_by_large_gradients, engine) == [True, True]


@EITHER
def test_parallel_models_are_used_like_others(engine: str) -> None:
    expected = engine, "m", [{True}, {False}], ((4, 4), (4, 32)), True
    assert ranks(2)(use, engine) == [expected] * 2


def network_of(
    *more: Any, merge: int = 1, rate: float = 0.1, momentum: float = 0.0, model: Any = None
) -> Any:
    optimizer = sgd(rate, momentum=momentum)
    model = model or fastnet.build(seeded(mlp), optimizer, model_name="net", parallel="ddp")
    return fastnet.Network([*more, *supervised(model, merge_grad=merge)])


def partly_frozen(rank: int) -> Any:
    model = fastnet.build(seeded(mlp), sgd(), parallel="fsdp")
    model[0].bias.requires_grad_(rank == 0)
    return model


def double(value: Any) -> Any:
    return value * 2


# What each of two ranks makes, and a part of what the error says of rank 1.
DIFFERENT: dict[str, tuple[Callable[[int], Any], str]] = {
    "an op": (lambda rank: network_of(*[LambdaOp(double, "x", "x")] * rank), "LambdaOp"),
    "an inner op": (
        lambda rank: network_of(Fuse([LambdaOp(double, "x", "xz"[rank])])),
        "outputs ['z']",
    ),
    "merged steps": (lambda rank: network_of(merge=2 + rank), "'merge_grad': 3"),
    "a rate": (lambda rank: network_of(rate=0.1 + rank), "SGD of model 'net', settings {'lr': 1.1"),
    "momentum": (lambda rank: network_of(momentum=rank / 2), "'momentum': 0.5"),
    "frozen weights": (
        lambda rank: network_of(model=partly_frozen(rank)),
        "trained weight 2.weight",
    ),
}


def open_different() -> dict[str, str]:
    errors = {}
    ((batch,),) = data(1, 1)
    for what, (make, _) in DIFFERENT.items():
        network = make(dist.get_rank())
        with pytest.raises(ValueError, match=r"^The ranks") as caught, network("train", 1):
            pass
        errors[what] = str(caught.value)
        with network("eval", 1):
            assert "loss" in network.run_step(batch)
    return errors


def refuse_second_gradients() -> None:
    for engine in ("ddp", "fsdp"):
        model = fastnet.build(seeded(mlp), "sgd", parallel=engine)
        with pytest.raises(ValueError, match="averages over processes cannot be differentiated"):
            GradientOp("loss", "g", model=model, higher_order=True)
    first, *rest = supervised(model)
    slope = GradientOp("loss", "slope", inputs="x", higher_order=True)
    network = fastnet.Network([Watch("x"), first, rest[0], slope, rest[1]])
    with pytest.raises(ValueError, match="sharded by FSDP2, which frees weights"), network("train"):
        pass
    slope.higher_order = False
    with network("train"):
        network.run_step(data(1, dist.get_world_size())[0][dist.get_rank()])


def test_second_gradients_of_distributed_models_are_refused() -> None:
    ranks(2)(refuse_second_gradients)


def test_different_ops_raise_on_every_rank() -> None:
    for errors in ranks(2)(open_different):
        for what, text in errors.items():
            assert text.startswith("The ranks would train with different ops"), what
            assert DIFFERENT[what][1] in text.partition("but rank 1 has ")[2], what


def use_loaders() -> Any:
    network = network_of()
    rows = [part[dist.get_rank()] for part in data(2 + dist.get_rank(), 2)]
    with pytest.raises(ValueError, match=r"^The loaders") as caught:
        network.transform(rows, mode="train")
    assert len(network.transform(rows, mode="eval")) == len(rows)
    assert len(network.transform(rows[:2], mode="train")) == 2
    samples: Any = [{key: value[i] for key, value in rows[0].items()} for i in range(4)]
    sampler: Any = DistributedSampler(samples)
    epochs = []
    for epoch in (1, 2):
        network.transform(DataLoader(samples, 2, sampler=sampler), mode="train", epoch=epoch)
        epochs.append(sampler.epoch)
    return str(caught.value), epochs


def test_loaders() -> None:
    """Different lengths raise, and samplers get the epoch."""
    for error, epochs in ranks(2)(use_loaders):
        assert error.startswith("The loaders of the ranks have [2, 3] batches, but in training")
        assert epochs == [1, 2]


def join_unevenly() -> tuple[State, State]:
    rank, program = dist.get_rank(), Program()
    batches = [parts[rank] for parts in data(2 + 2 * rank, 2)]
    (model,) = build(program, "ddp")
    network = fastnet.Network(program.ops([model]))
    with network("train", 1), Join([model]):
        for batch in batches:
            network.run_step(batch)
    other: Any = wrap(program.make()[0], "ddp", program)
    optimizer = program.optimizer(other.parameters())
    with Join([other]):
        for batch in batches:
            program.by_hand([other], [optimizer], batch, 0)
    return full_states([model]), full_states([other])


def test_join_of_uneven_ranks() -> None:
    for own, other in ranks(2)(join_unevenly):
        assert distance(own, other) == 0
