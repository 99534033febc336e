"""When something is communicated between processes, and how often: counted, as torch's profiler
sees it."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import fastnet
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.programs import Batch, mlp, run, seeded, sgd, supervised
from tests.network.torch import spread_programs
from tests.network.torch.spread_programs import Program, build_in, data, spread_by_hand, whole
from tests.ranks import ranks

REDUCING = ("c10d::allreduce_", "c10d::_reduce_scatter_base_", "c10d::reduce_scatter_")


class Counted:
    """Counts the collectives of this process by their names."""

    def __enter__(self) -> Counter[str]:
        self.names: Counter[str] = Counter()
        self._profile = profile(activities=[ProfilerActivity.CPU])
        self._profile.__enter__()
        return self.names

    def __exit__(self, *error: Any) -> None:
        self._profile.__exit__(*error)
        for event in self._profile.events() or []:
            if event.name.startswith("c10d::"):
                self.names[event.name] += 1


def reductions(names: Counter[str]) -> int:
    return sum(names[name] for name in REDUCING)


def count_steps(name: str, engine: str) -> dict[str, list[Counter[str]]]:
    """Count what each step communicates, with fastnet and by hand."""
    program: Program = getattr(spread_programs, name)()
    rank = dist.get_rank()
    batches = data(6, dist.get_world_size())
    counts: dict[str, list[Counter[str]]] = {"fastnet": [], "by hand": []}
    network = program.network(build_in(engine, program, program.make()))
    with network(mode="train", epoch=1):
        for parts in batches:
            with Counted() as names:
                network.run_step(parts[rank])
            counts["fastnet"].append(names)
    models = [spread_by_hand(one, engine, program) for one in program.make()]
    optimizers = [program.optimizer(one.parameters()) for one in models]
    for step, parts in enumerate(batches):
        with Counted() as names:
            program.by_hand(models, optimizers, parts[rank], step)
        counts["by hand"].append(names)
    return counts


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_a_plain_step_communicates_what_the_loop_by_hand_does(engine: str) -> None:
    for counts in ranks(2)(count_steps, "Program", engine):
        assert counts["fastnet"] == counts["by hand"]
        assert all(reductions(names) for names in counts["fastnet"])


@pytest.mark.parametrize("name", ["Merged", "MergedTwice"])
@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_merged_steps_communicate_in_the_last_one_alone(name: str, engine: str) -> None:
    merge = 3 if name == "Merged" else 2
    for counts in ranks(2)(count_steps, name, engine):
        own = [reductions(names) for names in counts["fastnet"]]
        assert [number > 0 for number in own] == [(step + 1) % merge == 0 for step in range(6)]
        if engine == "ddp":
            assert own == [reductions(names) for names in counts["by hand"]]


@pytest.mark.parametrize("name", ["Gan", "Trunk"])
def test_ops_communicate_once_for_each_model(name: str) -> None:
    for counts in ranks(2)(count_steps, name, "ddp"):
        program = getattr(spread_programs, name)
        assert [reductions(names) for names in counts["fastnet"]] == [program.count] * 6


def large_model() -> tuple[list[int], list[int]]:
    """Train a model of more than one bucket."""
    counts = []
    for merge in (1, 2):
        model = fastnet.build(lambda: nn.Linear(16, 500_000, bias=False), sgd(), parallel="ddp")
        network = fastnet.Network(supervised(model, merge_grad=merge))
        with network("train", 1):
            for parts in data(2, 1):
                with Counted() as names:
                    network.run_step(parts[0])
                counts.append(reductions(names))
    return counts[:2], counts[2:]


def test_ones_of_many_bytes_are_communicated_in_buckets() -> None:
    for plain, merged in ranks(2)(large_model):
        assert plain == [1, 1]
        assert merged == [0, 1]


def evaluate(mode: str) -> tuple[Counter[str], bool]:
    """Open a model for something else than training, on one rank alone."""
    model = seeded(spread_programs.Normed)
    built = fastnet.build(lambda: model, sgd(), parallel="ddp")
    network = fastnet.Network(supervised(built))
    ((mine,),) = data(1, 1)
    run(network, mine, "train")
    names: Counter[str] = Counter()
    same = True
    if dist.get_rank() == 1:  # the other one would not answer
        with Counted() as names:
            result = run(network, mine, mode)
        same = torch.equal(result["y"], model.eval()(mine["x"]))
    dist.barrier()
    return names, same


@pytest.mark.parametrize("mode", ["eval", "test", "infer"])
def test_nothing_is_communicated_outside_of_training(mode: str) -> None:
    assert ranks(2)(evaluate, mode) == [(Counter(), True)] * 2


def without_sync() -> tuple[list[Any], int]:
    """Run steps inside of the engine's own `no_sync`."""
    (model,) = Program().make()
    built = fastnet.build(lambda: model, sgd(), parallel="ddp")
    network = fastnet.Network(supervised(built))
    rank = dist.get_rank()
    with network("train", 1), Counted() as names:
        for step, parts in enumerate(data(4, dist.get_world_size())):
            with built.no_sync() if step % 2 else nullcontext():
                network.run_step(parts[rank])
    return whole([built]), reductions(names)


def test_no_sync_leaves_no_weights_different() -> None:
    """It is the update that needs averages: `merge_grad` is how to communicate less."""
    (one, counted), (other, _) = ranks(2)(without_sync)
    assert all(torch.equal(one[0][name], other[0][name]) for name in one[0])
    assert counted == 4


def half(kind: str, merge: int) -> tuple[list[Any], list[float], list[Any]]:
    """Train with a scaled loss, of which one rank's is infinite in one step."""
    model = seeded(mlp)
    options = {"blocks": nn.Linear} if kind == "fsdp" else {}
    built = fastnet.build(lambda: model, sgd(), mixed_precision="float16", parallel=kind, **options)
    network = fastnet.Network(supervised(built, merge_grad=merge))
    scales, states = [], []
    rank = dist.get_rank()
    with network("train", 1):
        for step, parts in enumerate(data(4, dist.get_world_size())):
            batch: Batch = dict(parts[rank])
            if step == 2 and rank == 1:
                batch["x"] = batch["x"] * float("inf")
            network.run_step(batch)
            scales.append(built.current_optimizer.scaler.get_scale())
            states.append(whole([built]))
    return whole([built]), scales, states


@pytest.mark.parametrize("merge", [1, 2])
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_all_ranks_agree_to_skip_an_update(kind: str, merge: int) -> None:
    results = ranks(2)(half, kind, merge)
    first, scales, states = results[0]
    for weights, own, _ in results:
        assert own == scales
        assert all(torch.equal(weights[0][name], first[0][name]) for name in weights[0])
    skipped = 2 if merge == 1 else 3
    assert scales[skipped] == scales[skipped - 1] / 2
    before, after = states[skipped - 1][0], states[skipped][0]
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not any(value.isnan().any() for value in after.values())
    assert not torch.equal(states[0][0]["0.weight"], states[1][0]["0.weight"]) or merge == 2


def broken(kind: str) -> tuple[list[Any], list[Any]]:
    """Let steps fail on all ranks, before and after the backward pass, and go on."""
    weights = []
    for fails in (False, True):
        model = seeded(mlp)
        options = {"blocks": nn.Linear} if kind == "fsdp" else {}
        built = fastnet.build(lambda made=model: made, sgd(), parallel=kind, **options)
        network = fastnet.Network(supervised(built))
        rank = dist.get_rank()
        for parts in data(3, dist.get_world_size()):
            batch = parts[rank]
            if fails:
                with pytest.raises(IndexError), network("train", 1):
                    network.run_step({"x": batch["x"], "t": torch.full((4,), 99)})
                with network("train", 1, warmup=True):
                    network.run_step(batch)
                with network("eval", 1):
                    network.run_step(batch)
            with network("train", 1):
                network.run_step(batch)
        weights.append(whole([built]))
    return weights[0], weights[1]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_steps_that_fail_leave_nothing(kind: str) -> None:
    for smooth, rough in ranks(2)(broken, kind):
        assert all(torch.equal(smooth[0][name], rough[0][name]) for name in smooth[0])


def given_by_op(engine: str) -> tuple[list[Any], list[Any]]:
    """Give an update gradients that an op of the program has taken itself."""
    from fastnet.op.tensorop import LambdaOp

    weights = []
    for own in (False, True):
        (model,) = Program().make()
        built = fastnet.build(lambda made=model: made, sgd(), parallel=engine)

        def take(loss: torch.Tensor, of: Any = built) -> list[torch.Tensor]:
            return list(torch.autograd.grad(loss, list(of.parameters())))

        *ops, update = supervised(built)
        if own:
            ops.append(LambdaOp(take, "loss", "g"))
            update = UpdateOp(built, "loss", gradients="g")
        network = fastnet.Network([*ops, update])
        rank = dist.get_rank()
        if own:
            network.ops.insert(0, fastnet.op.tensorop.gradient.Watch("x"))
        with network("train", 1):
            for parts in data(3, dist.get_world_size()):
                network.run_step(parts[rank])
        weights.append(whole([built]))
    return weights[0], weights[1]


def test_gradients_of_an_ops_own_are_averaged_by_the_update() -> None:
    for plain, given in ranks(2)(given_by_op, "ddp"):
        for name, value in plain[0].items():
            torch.testing.assert_close(given[0][name], value, rtol=0, atol=1e-6)


def wrapped_before(kind: str) -> list[Any]:
    program = Program()
    batches = data(4, dist.get_world_size())
    rank = dist.get_rank()
    models = [spread_by_hand(one, kind, program) for one in program.make()]
    built = fastnet.build(models, program.optimizer)
    assert built is models[0]
    network = program.network([built])
    with network("train", 1):
        for parts in batches:
            network.run_step(parts[rank])
    own = whole([built])
    others = [spread_by_hand(one, kind, program) for one in program.make()]
    optimizers = [program.optimizer(one.parameters()) for one in others]
    for step, parts in enumerate(batches):
        program.by_hand(others, optimizers, parts[rank], step)
    return [own, whole(others)]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_models_that_were_wrapped_before_are_taken_as_they_are(kind: str) -> None:
    for own, other in ranks(2)(wrapped_before, kind):
        assert all(torch.equal(own[0][name], other[0][name]) for name in own[0])


def begins_alike(kind: str) -> list[Any]:
    rank = dist.get_rank()
    model = seeded(mlp, rank)  # each rank another one
    return whole([fastnet.build(lambda: model, None, parallel=kind)])


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "auto"])
def test_all_begin_with_the_first_ranks_weights(kind: str) -> None:
    expected = seeded(mlp, 0).state_dict()
    for (weights,) in ranks(2)(begins_alike, kind):
        assert all(torch.equal(weights[name], expected[name]) for name in expected)


def kinds() -> list[str]:
    engines = fastnet.backend.torch.wrappers
    made = [
        fastnet.build(mlp, "sgd", parallel=kind) for kind in ("auto", "ddp", "fsdp", None, "dp")
    ]
    frozen = fastnet.build(lambda: mlp().requires_grad_(False), None)
    return [
        *(engines.engine_of(one) for one in made),
        engines.engine_of(frozen),
        isinstance(made[0], DistributedDataParallel),
    ]


def test_which_engine() -> None:
    expected = ["ddp", "ddp", "fsdp", None, "dp", None, True]
    assert ranks(2)(kinds) == [expected] * 2


def overlapped(change: str) -> tuple[int, bool, list[Any]]:
    """Train a model that was wrapped before, and count who communicates."""
    (model,) = Program().make()
    wrapped = DistributedDataParallel(model)
    if change == "frozen":
        model[0].requires_grad_(False)
    hooked: list[int] = []

    # torch compares annotations, which are strings here
    def hook(state, bucket):  # type: ignore[no-untyped-def]
        hooked.append(bucket.index())
        return allreduce_hook(state, bucket)

    wrapped.register_comm_hook(None, hook)
    network = fastnet.Network(supervised(fastnet.build(wrapped, sgd())))
    rank = dist.get_rank()
    with network("train", 1), Counted() as names:
        for parts in data(2, dist.get_world_size()):
            network.run_step(parts[rank])
    return reductions(names), bool(hooked), whole([model])


@pytest.mark.parametrize("change", ["none", "frozen"])
def test_hooks_of_the_user_are_called_where_the_engine_communicates(change: str) -> None:
    for count, hooked, weights in ranks(2)(overlapped, change):
        assert count == 2
        assert hooked == (change == "none")
        expected = seeded(mlp, 0)[0].weight
        assert torch.equal(weights[0]["0.weight"], expected) == (change == "frozen")


def through_compiled() -> list[Any]:
    """Train a model that is compiled around, and inside of, its wrapper."""
    states = []
    for order in ("none", "outside", "inside"):
        (model,) = Program().make()
        inner = torch.compile(model, backend="eager") if order == "inside" else model
        wrapped: Any = DistributedDataParallel(inner)
        if order == "outside":
            wrapped = torch.compile(wrapped, backend="eager")
        built = fastnet.build(wrapped, sgd())
        assert fastnet.backend.torch.wrappers.engine_of(built) == "ddp"
        assert fastnet.backend.torch.names.innermost(built) is model
        network = fastnet.Network(supervised(built))
        rank = dist.get_rank()
        with network("train", 1):
            for parts in data(2, dist.get_world_size()):
                network.run_step(parts[rank])
        with network("eval", 1), Counted() as names:
            network.run_step(parts[rank])
        assert not names
        states.append(whole([model]))
    return states


def test_compiled_models() -> None:
    for plain, *others in ranks(2)(through_compiled):
        for other in others:
            for name, value in plain[0].items():
                torch.testing.assert_close(other[0][name], value, rtol=0, atol=1e-6)


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.drop(self.body(x) + 0 * z.sum()))
        return out


def used(engine: str) -> dict[str, Any]:
    """Look at all that a network does with a model, but for training it."""
    model = seeded(Named)
    options = {"blocks": nn.Linear} if engine == "fsdp" else {}
    built = fastnet.build(lambda: model, "adam", model_name="m", parallel=engine, **options)
    run_model = ModelOp(built, ["x", "z"], ["y", "h"], intermediate_layers="body")
    loss = CrossEntropy(("y", "t"), "loss", from_logits=True)
    network = fastnet.Network([run_model, loss, UpdateOp(built, "loss")])
    ((batch,),) = data(1, 1)
    training = {}
    shapes = {}
    for mode in ("train", "eval"):
        with network(mode, 1):
            result = network.run_step(batch)
        training[mode] = {one.training for one in built.modules()}
        shapes[mode] = [tuple(result[key].shape) for key in ("y", "h")]
    return {
        "name": built.model_name,
        "optimizer": type(built.current_optimizer).__name__,
        "loss": built.loss_name,
        "spec": built.fe_input_spec.shape,
        "training": training,
        "shapes": shapes,
        "explained": "ModelOp" in str(network.explain("train")),
        "models": [one is built for one in network.models],
        "engine": fastnet.backend.torch.wrappers.engine_of(built),
        "bare": fastnet.backend.torch.names.innermost(built) is model,
    }


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_spread_models_are_used_like_others(engine: str) -> None:
    expected = {
        "name": "m",
        "optimizer": "Adam",
        "loss": {"loss"},
        "spec": [(4, 16), (4, 16)],
        "training": {"train": {True}, "eval": {False}},
        "shapes": {"train": [(4, 4), (4, 8)], "eval": [(4, 4), (4, 8)]},
        "explained": True,
        "models": [True],
        "engine": engine,
        "bare": True,
    }
    assert ranks(2)(used, engine) == [expected] * 2


def by_function() -> list[Any]:
    """Update a model by the functions that ops are made of."""
    (model,) = Program().make()
    built = fastnet.build(lambda: model, sgd(), parallel="ddp")
    rank = dist.get_rank()
    for parts in data(3, dist.get_world_size()):
        loss = Program().loss([model], parts[rank])
        gradients = fastnet.backend.get_gradient(loss, list(model.parameters()))
        fastnet.backend.update_model(built, gradients)
    return whole([model])


def test_an_update_by_function_is_of_averages() -> None:
    (model,) = Program().make()
    for parts in data(3, 2):
        (sum(Program().loss([model], part) for part in parts) / 2).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        model.zero_grad()
    for (weights,) in ranks(2)(by_function):
        for name, value in model.state_dict().items():
            torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-6)
