"""Compiled steps of models in DistributedDataParallel, on two ranks over gloo.

The programs are those of `parallel_programs`, and the oracles hand-written loops under
DistributedDataParallel and in one process.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import fastnet
from fastnet import CompileOptions
from fastnet.backend.torch import all_reduce
from fastnet.network.torch.compiled import program_set
from fastnet.network.torch.compiled.program import TorchProgram
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.programs import mlp, seeded, sgd, supervised
from tests.network.torch import parallel_programs
from tests.network.torch.compiled.steps import QUICK, fallbacks
from tests.network.torch.compiled.test_inductor import by_inductor
from tests.network.torch.parallel_programs import (
    Normed,
    Program,
    build,
    data,
    full_states,
    run_by_hand,
)
from tests.network.torch.test_parallel import PROGRAMS, State, counted, distance
from tests.ranks import ranks

# The programs with steps that run eagerly, and a part of the reason.
EAGER = {
    "Given": "looks at the values of tensors",
    "Unused": "has find_unused_parameters=True, so it averages gradients itself",
    "UnusedMerged": "looks at the values of tensors",
    "FrozenInWindow": "a parameter was frozen since its gradients were merged",
}


class Trained(NamedTuple):
    """The weights of models, and how often a program ran, and why steps ran eagerly."""

    states: State
    compiled: int
    reasons: list[str]


@contextmanager
def compiled_steps() -> Iterator[list[TorchProgram]]:
    """List the program of each step that is not run eagerly."""
    programs: list[TorchProgram] = []
    run = TorchProgram.run

    def listed(program: TorchProgram, *args: Any) -> Any:
        programs.append(program)
        return run(program, *args)

    TorchProgram.run = listed  # type: ignore[method-assign]
    try:
        yield programs
    finally:
        TorchProgram.run = run  # type: ignore[method-assign]


def train(
    program: Program,
    batches: list[list[Any]],
    compile: Any = QUICK,
    before: Callable[[int, Any], None] | None = None,
) -> Trained:
    """Train on this rank's batches in one session; `before` gets each step and the network."""
    built = build(program, "ddp")
    network: Any = fastnet.Network(program.ops(built), compile=compile)
    with compiled_steps() as programs, network("train", 1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step, parts in enumerate(batches):
            if step % 2 == 0:
                program.before(built, step)
            if before is not None:
                before(step, network)
            network.run_step(parts[dist.get_rank()])
    states = full_states([*built, *program.averages(network)])
    return Trained(states, len(programs), fallbacks(network))


def compare(name: str, steps: int, compile: Any) -> tuple[Trained, State]:
    program: Program = getattr(parallel_programs, name)()
    batches = data(steps, dist.get_world_size())
    trained = train(program, batches, compile)
    if program.has_loop or program.has_one:
        return trained, run_by_hand(program, "ddp" if program.has_loop else None, batches)
    return trained, train(program, batches, compile=False).states


@pytest.mark.parametrize("program", [cls for cls in PROGRAMS if "ddp" in cls.engines])
def test_programs(program: type[Program]) -> None:
    for trained, by_hand in ranks(2)(compare, program.__name__, 13, QUICK):
        tolerance = 1e-2 if program is parallel_programs.Half else 2e-6
        assert distance(trained.states, by_hand, but="running") <= tolerance
        reason = EAGER.get(program.__name__)
        if reason is None:
            assert trained.reasons == []
            assert trained.compiled > 0
        else:
            assert all(reason in found for found in trained.reasons)
            assert trained.reasons


@pytest.mark.parametrize(
    "compile",
    [
        pytest.param(QUICK, id="eager"),
        pytest.param(CompileOptions(), marks=[pytest.mark.slow, by_inductor], id="inductor"),
    ],
)
@pytest.mark.parametrize("name", ["Program", "Gan", "Transformer", "MergedBuffers"])
def test_fifty_steps(name: str, compile: CompileOptions) -> None:
    first, second = ranks(2)(compare, name, 50, compile)
    for trained, by_hand in (first, second):
        assert distance(trained.states, by_hand) <= 2e-5
        assert trained.reasons == []
        assert trained.compiled >= 40
    # All ranks have the same weights, bit for bit, if they compile the same steps.
    assert distance(first[0].states, second[0].states, but="running") == 0


# --- what is communicated -------------------------------------------------------------------------


def count_messages(name: str) -> list[Counter[str]]:
    program: Program = getattr(parallel_programs, name)()
    network: Any = fastnet.Network(program.ops(build(program, "ddp")), compile=QUICK)
    counts = []
    with compiled_steps() as programs, network("train", 1):
        for parts in data(10, dist.get_world_size()):
            with counted() as names:
                network.run_step(parts[dist.get_rank()])
            counts.append(names)
    assert len(programs) >= 4
    return counts


@pytest.mark.parametrize(("name", "reductions"), [("NormedGan", [2]), ("MergedBuffers", [0, 1])])
def test_eager_verified_and_compiled_steps_communicate_alike(
    name: str, reductions: list[int]
) -> None:
    """The first step is eager, and the first of each program is verified."""
    for counts in ranks(2)(count_messages, name):
        phases = len(reductions)
        for place, names in enumerate(counts):
            assert names == counts[place % phases]
        assert [names["c10d::allreduce_"] for names in counts[:phases]] == reductions
        assert counts[0]["c10d::broadcast_"] == 3


def train_in_buckets(limit: int) -> tuple[Trained, Counter[str]]:
    all_reduce._BUCKET_BYTES = limit
    try:
        program = Program()
        trained = train(program, data(6, 2))
        network: Any = fastnet.Network(program.ops(build(program, "ddp")), compile=QUICK)
        with network("train", 1), counted() as names:
            network.run_step(data(1, 2)[0][dist.get_rank()])
        return trained, names
    finally:
        all_reduce._BUCKET_BYTES = 25 * 2**20


def test_gradients_are_averaged_in_buckets() -> None:
    (whole, _), _ = ranks(2)(train_in_buckets, 2**20)
    for trained, names in ranks(2)(train_in_buckets, 200):
        # A weight of 2048 bytes, a bias of 128 with a weight of 512, and a bias of 16.
        assert names["c10d::allreduce_"] == 3
        assert trained.compiled > 0
        assert distance(trained.states, whole.states) == 0


def verify_on_one_rank() -> tuple[Trained, State]:
    batches = data(12, 2)
    verify: Any = 2 if dist.get_rank() else None
    options = CompileOptions(backend="eager", verify=verify)
    return train(Program(), batches, options), run_by_hand(Program(), "ddp", batches)


def test_ranks_may_verify_different_steps() -> None:
    for trained, by_hand in ranks(2)(verify_on_one_rank):
        assert trained.reasons == []
        assert distance(trained.states, by_hand) <= 1e-6


def fault_on_one_rank() -> tuple[Trained, State]:
    """Let the program of rank 1 send other gradients than an eager step."""

    def capture_wrongly(request: Any) -> Any:
        captured = capture(request)
        graph = captured.graph.graph
        average = torch.ops.fastnet.average.default
        node = next(node for node in graph.nodes if node.target is average)
        with graph.inserting_before(node):
            wrong = graph.call_function(torch.ops.aten.mul.Tensor, (node.args[0], 1.01))
        node.update_arg(0, wrong)
        captured.graph.recompile()
        return captured

    capture = program_set.capture
    program_set.capture = capture_wrongly if dist.get_rank() else capture
    try:
        batches = data(12, 2)
        return train(Program(), batches), run_by_hand(Program(), "ddp", batches)
    finally:
        program_set.capture = capture


def test_wrong_gradients_of_one_rank_are_found() -> None:
    (right, by_hand), (wrong, _) = ranks(2)(fault_on_one_rank)
    assert right.reasons == []
    assert right.compiled > wrong.compiled == 0
    assert "gave other results than the same step run eagerly" in wrong.reasons[0]
    for trained in (right, wrong):
        assert distance(trained.states, by_hand) <= 1e-6


# --- ranks that differ ----------------------------------------------------------------------------


class Scaled(TensorOp):
    """Multiplies by a number that a program may change."""

    factor = 1.0

    def forward(self, data: Any, state: Any) -> Any:
        return data * self.factor


class Scaling(Program):
    """The loss is scaled, on rank 1 by another number from the sixth step on."""

    def before_update(self, model: Any) -> list[Any]:
        return [Scaled("loss", "loss")]

    def losses(self, models: Any, batch: Any) -> list[torch.Tensor]:
        factor = 3.0 if dist.get_rank() == 1 and self.step_number >= 5 else 1.0
        return [factor * super().losses(models, batch)[0]]

    step_number = 0

    def by_hand(self, models: Any, optimizers: Any, batch: Any, step: int) -> None:
        self.step_number = step
        super().by_hand(models, optimizers, batch, step)


def change_an_op() -> tuple[Trained, State]:
    def change(step: int, network: Any) -> None:
        if step == 5 and dist.get_rank() == 1:
            next(op for op in network.ops if isinstance(op, Scaled)).factor = 3.0

    batches = data(12, 2)
    return train(Scaling(), batches, before=change), run_by_hand(Scaling(), "ddp", batches)


def test_an_op_may_change_on_one_rank() -> None:
    (first, by_hand), (second, _) = ranks(2)(change_an_op)
    assert second.compiled < first.compiled
    for trained in (first, second):
        assert trained.reasons == []
        assert distance(trained.states, by_hand) <= 2e-6


def unequal_batches() -> tuple[Trained, State]:
    batches = data(12, 2)
    for step, size in ((4, 3), (7, 2), (9, 3)):
        batches[step][1] = {key: value[:size] for key, value in batches[step][1].items()}
    return train(Program(), batches), run_by_hand(Program(), "ddp", batches)


def test_batches_of_ranks_may_differ_in_size() -> None:
    (first, by_hand), (second, _) = ranks(2)(unequal_batches)
    assert first.compiled > second.compiled > 0
    for trained in (first, second):
        assert trained.reasons == []
        assert distance(trained.states, by_hand) <= 2e-6


def compile_differently() -> tuple[Trained, State]:
    batches = data(12, 2)
    options = CompileOptions(backend="aot_eager" if dist.get_rank() else "eager")
    return train(Program(), batches, options), run_by_hand(Program(), "ddp", batches)


def test_ranks_may_compile_by_different_backends() -> None:
    for trained, by_hand in ranks(2)(compile_differently):
        assert trained.compiled > 0
        assert trained.reasons == []
        assert distance(trained.states, by_hand) <= 1e-6


def run_several_steps() -> tuple[State, State, int]:
    program = parallel_programs.MergedBuffers()
    batches = data(20, 2)
    built = build(program, "ddp")
    network: Any = fastnet.Network(program.ops(built), compile=QUICK)
    with compiled_steps() as programs, network("train", 1):
        for first in range(0, 20, 5):
            network.run_steps([parts[dist.get_rank()] for parts in batches[first : first + 5]])
    assert fallbacks(network) == []
    return full_states(built), run_by_hand(program, "ddp", batches), len(programs)


def test_several_steps_in_a_call() -> None:
    for states, by_hand, compiled in ranks(2)(run_several_steps):
        assert distance(states, by_hand) <= 2e-6
        assert compiled >= 10


def fail_on_all_ranks() -> tuple[State, State]:
    """Let a step fail that is compiled on rank 0, and is of another size on rank 1."""
    states = []
    for compile in (QUICK, False):
        model = fastnet.build(seeded(Normed), sgd(), parallel="ddp")
        network: Any = fastnet.Network(supervised(model), compile=compile)
        with compiled_steps() as programs, network("train", 1):
            for step, parts in enumerate(data(8, 2)):
                batch = parts[dist.get_rank()]
                if step == 5:
                    size = 4 - dist.get_rank()
                    bad = {"x": batch["x"][:size], "t": torch.full((size,), 99)}
                    count = len(programs)
                    with pytest.raises(IndexError):
                        network.run_step(bad)
                    assert len(programs) == count + (bool(compile) and dist.get_rank() == 0)
                network.run_step(batch)
        # Whether statistics include the failed step depends on where it fails.
        states.append([{name: one.detach() for name, one in model.named_parameters()}])
    return states[0], states[1]


def test_a_step_that_fails_on_all_ranks_leaves_nothing_behind() -> None:
    for compiled, eager in ranks(2)(fail_on_all_ranks):
        assert distance(compiled, eager) <= 1e-6


class Failing(TensorOp):
    """Fails in the step after `is_due` was set, which a program notices."""

    is_due = False

    def forward(self, data: Any, state: Any) -> Any:
        if self.is_due:
            raise ArithmeticError("due")
        return data


def fail_on_one_rank() -> str:
    """Raise on rank 1, and return what the other rank sees within its timeout."""
    group: Any = dist.new_group(timeout=timedelta(seconds=300))
    model = DistributedDataParallel(seeded(mlp), process_group=group)
    built = fastnet.build(lambda: model, sgd())
    failing = Failing("x", "x")
    network = fastnet.Network([failing, *supervised(built)], compile=QUICK)
    seen = ""
    with compiled_steps() as programs, network("train", 1):
        *batches, last = data(6, 2)
        for parts in batches:
            network.run_step(parts[dist.get_rank()])
        assert programs
        distributed_c10d._set_pg_timeout(timedelta(seconds=1), group)
        failing.is_due = dist.get_rank() == 1
        try:
            network.run_step(last[dist.get_rank()])
        except (ArithmeticError, RuntimeError) as error:
            seen = type(error).__name__
    dist.barrier()
    return seen


def test_a_rank_that_raises_lets_the_other_end_in_the_timeout() -> None:
    assert ranks(2)(fail_on_one_rank) == ["RuntimeError", "ArithmeticError"]


def exit_on_one_rank() -> None:
    def leave(step: int, network: Any) -> None:
        if step == 5 and dist.get_rank() == 1:
            os._exit(1)

    train(Program(), data(8, 2), before=leave)


def test_a_rank_that_exits_ends_the_other() -> None:
    first, second = ranks(2).outcomes(exit_on_one_rank)
    assert "RuntimeError" in str(first.error)
    assert second.error == "The process has ended."


def skip_on_one_rank(merge: int) -> tuple[list[bool], list[State], int]:
    """Train with a gradient that in one step is infinite on one rank."""
    model = fastnet.build(seeded(mlp), sgd(), parallel="ddp")
    ops = supervised(model, merge_grad=merge, skip_nonfinite=True, outputs={"stepped": "stepped"})
    network = fastnet.Network(ops, compile=QUICK)
    stepped, states = [], []
    with compiled_steps() as programs, network("train", 1):
        for step, parts in enumerate(data(12, 2)):
            factor = float("inf") if step == 8 and dist.get_rank() == 1 else 1.0
            batch = parts[dist.get_rank()]
            result = network.run_step({**batch, "x": batch["x"] * factor})
            stepped.append(bool(result["stepped"]))
            states.append(full_states([model]))
    assert fallbacks(network) == []  # type: ignore[arg-type]
    return stepped, states, len(programs)


@pytest.mark.parametrize("merge", [1, 2])
def test_all_ranks_skip_a_gradient_that_is_not_finite(merge: int) -> None:
    first, second = ranks(2)(skip_on_one_rank, merge)
    for stepped, states, compiled in (first, second):
        skipped = 7 + merge
        assert stepped == [step % merge == merge - 1 and step != skipped for step in range(12)]
        assert distance(states[skipped], states[skipped - 1]) == 0
        assert distance(states[-1], states[skipped]) > 1e-4
        assert compiled > 4
    assert distance(first[1][-1], second[1][-1]) == 0


def train_by_weight(compile: Any) -> tuple[State, list[str]]:
    """Train by batches of which the ranks count different numbers of rows."""
    model = fastnet.build(seeded(mlp), sgd(), parallel="ddp")
    network: Any = fastnet.Network(
        supervised(model, merge_grad=2, weight="count", clip_norm=0.1), compile=compile
    )
    with network("train", 1):
        for step, parts in enumerate(data(12, 2)):
            count = torch.tensor((3 * step + 2 * dist.get_rank()) % 4)
            network.run_step({**parts[dist.get_rank()], "count": count})
    return full_states([model]), fallbacks(network)


def compare_by_weight() -> tuple[State, State, list[str]]:
    compiled, reasons = train_by_weight(QUICK)
    eager, _ = train_by_weight(False)
    return compiled, eager, reasons


def test_weights_count_over_all_ranks() -> None:
    for compiled, eager, reasons in ranks(2)(compare_by_weight):
        assert reasons == []
        assert distance(compiled, eager) <= 1e-6


# --- what runs eagerly ----------------------------------------------------------------------------


def all_reduced(y: torch.Tensor) -> torch.Tensor:
    total = y.detach().clone()
    dist.all_reduce(total)
    return total


def hooked(model: Any) -> None:
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)


# What is built, what runs beside it, and a part of the reason.
UNCAPTURED: dict[str, tuple[dict[str, Any], Callable[[Any], Any] | None, list[Any], str]] = {
    "unused": ({"find_unused_parameters": True}, None, [], "find_unused_parameters=True"),
    "static": ({"static_graph": True}, None, [], "static_graph=True"),
    "hook": ({}, hooked, [], "a communication hook"),
    "fsdp": ({"parallel": "fsdp"}, None, [], "sharded by FSDP2"),
    "op": ({}, None, [LambdaOp(all_reduced, "x", "s")], "communicates with other processes"),
}


def run_uncaptured(name: str) -> tuple[State, State, list[str]]:
    options, prepare, ops, _ = UNCAPTURED[name]
    states, reasons = [], []
    for compile in (QUICK, False):
        model = fastnet.build(seeded(mlp), sgd(), **{"parallel": "ddp", **options})
        if prepare is not None:
            prepare(model)
        network: Any = fastnet.Network([*ops, *supervised(model)], compile=compile)
        with network("train", 1), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for parts in data(4, 2):
                network.run_step(parts[dist.get_rank()])
        states.append(full_states([model]))
        reasons += fallbacks(network)
    return states[0], states[1], reasons


@pytest.mark.parametrize("name", UNCAPTURED)
def test_steps_that_are_not_captured_run_as_without_compiling(name: str) -> None:
    for compiled, eager, (reason,) in ranks(2)(run_uncaptured, name):
        assert UNCAPTURED[name][-1] in reason
        assert distance(compiled, eager) == 0


def join_unevenly() -> tuple[State, State, list[str]]:
    """Train with more batches on one rank, and equally many before and afterwards."""
    rank = dist.get_rank()
    states, reasons = [], []
    for compile in (QUICK, False):
        model: Any = fastnet.build(seeded(mlp), sgd(), parallel="ddp")
        network: Any = fastnet.Network(supervised(model), compile=compile)
        for epoch, count in enumerate((3, 3 + 2 * rank, 3)):
            with (
                warnings.catch_warnings(),
                network("train", 1),
                Join([model]) if epoch == 1 else nullcontext(),
            ):
                warnings.simplefilter("ignore")
                for parts in data(count, 2):
                    network.run_step(parts[rank])
        states.append(full_states([model]))
        reasons += fallbacks(network)
    return states[0], states[1], reasons


def test_steps_of_joined_ranks_run_eagerly() -> None:
    for compiled, eager, (reason,) in ranks(2)(join_unevenly):
        assert "the model is in the context of Join" in reason
        assert distance(compiled, eager) <= 1e-6


def compile_on_one_rank() -> str:
    model = fastnet.build(seeded(mlp), sgd(), parallel="ddp")
    compile: Any = QUICK if dist.get_rank() else False
    network = fastnet.Network(supervised(model), compile=compile)
    with pytest.raises(ValueError, match="rank 0 has no compiled steps") as error, network("train"):
        pass
    return str(error.value)


def test_compiling_on_some_ranks_is_an_error() -> None:
    for text in ranks(2)(compile_on_one_rank):
        assert "but rank 1 has compiled steps" in text


def evaluate_alone() -> int:
    """Let one rank evaluate by a program, which must not wait for the other."""
    model = fastnet.build(seeded(Normed), sgd(), parallel="ddp")
    loss = CrossEntropy(("y", "t"), "loss", from_logits=True)
    ops = [ModelOp(model, "x", "y"), loss, UpdateOp(model, "loss")]
    network: Any = fastnet.Network(ops, compile=QUICK)
    if dist.get_rank() == 0:
        return 0
    with compiled_steps() as programs, network("eval", 1), counted() as names:
        for parts in data(4, 1):
            network.run_step(parts[0])
    assert names == Counter()
    return len(programs)


def test_a_rank_evaluates_by_a_program_alone() -> None:
    assert ranks(2)(evaluate_alone) == [0, 2]


def left_unused() -> list[str]:
    """Train a model with a parameter that no loss reaches."""

    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(16, 4), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.used(x)
            return out

    model = fastnet.build(seeded(Partly), sgd(), parallel="ddp")
    network: Any = fastnet.Network(supervised(model), compile=QUICK)
    with network("train", 1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for parts in data(4, 2):
            network.run_step(parts[dist.get_rank()])
    unused = full_states([model])[0]["unused.weight"]
    assert torch.equal(unused, seeded(Partly).unused.weight)
    return fallbacks(network)


def test_a_parameter_without_gradient_makes_steps_run_eagerly() -> None:
    for (reason,) in ranks(2)(left_unused):
        assert "a parameter that is trained has no gradient" in reason


def seeded_batches(count: int, size: int) -> list[dict[str, torch.Tensor]]:
    source = torch.Generator().manual_seed(1)
    return [
        {
            "x": torch.randn(size, 16, generator=source),
            "t": torch.randint(0, 4, (size,), generator=source),
        }
        for _ in range(count)
    ]


def order_parameters_by_rank(compile: Any) -> State:
    """Train with an optimizer whose group lists parameters in another order on each rank."""

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        listed = list(parameters)
        return torch.optim.SGD(listed[::-1] if dist.get_rank() else listed, lr=0.1)

    def square() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 4))

    model = fastnet.build(square, optimizer, parallel="ddp")
    network = fastnet.Network(supervised(model), compile=compile)
    with network("train"):
        for batch in seeded_batches(6, 8):
            rank = dist.get_rank()
            network.run_step({key: value.chunk(2)[rank] for key, value in batch.items()})
    if compile:
        assert fallbacks(network) == []
    return full_states([model])


def order_parameters_by_hand() -> State:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in seeded_batches(6, 8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch["x"]), batch["t"]).backward()
        optimizer.step()
    return full_states([model])


@pytest.mark.parametrize("compile", [False, QUICK])
def test_optimizers_may_list_parameters_in_another_order_on_each_rank(compile: Any) -> None:
    """As where decay groups are made from a set of names, whose order differs by process."""
    expected = order_parameters_by_hand()
    for states in ranks(2)(order_parameters_by_rank, compile):
        assert distance(states, expected) <= 2e-6


def hook_within_a_context() -> tuple[State, State, list[str]]:
    """Train compiled and not; double the averages by a hook, from the fourth step on."""
    trained, reasons = [], []

    def doubled(state, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations
        future = default_hooks.allreduce_hook(state, bucket)
        return future.then(lambda one: 2 * one.value())

    for compile in (QUICK, False):
        torch.manual_seed(0)
        model = fastnet.build(mlp, sgd(0.1), parallel="ddp")
        network = fastnet.Network(supervised(model), compile=compile)
        with network("train"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for step, batch in enumerate(seeded_batches(6, 8)):
                if step == 3:
                    model.register_comm_hook(None, doubled)
                rank = dist.get_rank()
                network.run_step({key: value.chunk(2)[rank] for key, value in batch.items()})
        trained.append(full_states([model]))
        reasons += fallbacks(network)
    return trained[0], trained[1], reasons


def test_communication_hook_takes_effect_within_a_context() -> None:
    for compiled, eager, reasons in ranks(2)(hook_within_a_context):
        assert distance(compiled, eager) <= 2e-6
        assert "or has a communication hook" in reasons[0]
