"""What captured steps cost in memory, and networks that are copied, cleared or slice batches."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

from fastnet._execute import BoundPlan
from fastnet.network import TorchNetwork
from fastnet.network.dynamic_axes import DynamicAxes
from fastnet.network.torch.compiled.program import TorchProgram
from fastnet.network.torch.compiled.program_set import TorchProgramSet
from fastnet.network.torch.compiled.session import CompiledSession
from fastnet.network.trace_records import Records
from fastnet.op.tensorop import LambdaOp
from fastnet.slicer import AxisSlicer, MeanUnslicer
from fastnet.types import RunStep
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    QUICK,
    assert_same_weights,
    batches,
    built,
    captured,
    network_of,
    run_both,
)


def test_programs_of_plans_that_are_gone_are_freed() -> None:
    def programs() -> dict[int, TorchProgram]:
        return {id(one): one for one in gc.get_objects() if type(one) is TorchProgram}

    # what failing tests have left in tracebacks is none of this one's
    others = programs()
    network = network_of(built(lambda: nn.Linear(6, 3)))
    with network("train", 1):
        for batch in batches(3):
            network.run_step(batch)
    gone = [weakref.ref(one) for place, one in programs().items() if place not in others]
    assert len(gone) == 1
    network.retrace()
    with network("infer", 1):
        network.run_step(batches(1)[0])
    del network
    gc.collect()
    assert [one for one in gone if one() is not None] == []


def _doubling(**settings: Any) -> TorchNetwork:
    ops = [LambdaOp(lambda x: x * 2, "x", "y"), LambdaOp(lambda x: x + 1, "x", "z", ds_id="other")]
    return TorchNetwork(ops, compile=QUICK, **settings)


def _run_steps(network: TorchNetwork, steps: int = 3, **context: Any) -> None:
    with network("infer", **context):
        for _ in range(steps):
            assert network.run_step({"x": torch.ones(2)})["y"].tolist() == [2, 2]


def test_plans_of_the_same_ops_share_programs() -> None:
    network = _doubling()
    _run_steps(network, epoch=1)
    _run_steps(network, epoch=1, ds_id="first")
    _run_steps(network, epoch=2, ds_id="second")
    assert captured(network) == 1
    _run_steps(network, epoch=2, ds_id="other")
    _run_steps(network, epoch=2, desired_output_keys={"y"}, ds_id="other")
    assert captured(network) == 3


def test_op_with_other_keys_has_its_own_programs() -> None:
    network = _doubling()
    _run_steps(network, epoch=1)
    network.ops[0].inputs = ["w"]
    batch = {"w": torch.ones(2), "x": torch.zeros(2)}
    with network("infer", 2):
        for _ in range(3):
            assert network.run_step(batch)["y"].tolist() == [2, 2]
    assert captured(network) == 2


def test_retrace_discards_programs_of_open_network() -> None:
    network = _doubling()
    with network("infer", 1):
        for _ in range(3):
            network.run_step({"x": torch.ones(2)})
        network.retrace()
        session = network._session  # What a program may hold on to.
    _run_steps(network, epoch=1)
    assert session is not None
    assert captured(network) == 2


def test_sessions_of_the_same_programs_keep_apart() -> None:
    network = _doubling()
    plan = network._plan_cache.find("infer", 1, "", None)
    records = Records("eagerly")
    programs = TorchProgramSet(plan, QUICK, records, torch.device("cpu"), DynamicAxes())
    eager_steps: list[int] = []

    def open_session(epoch: int) -> RunStep:
        state = {"mode": "infer", "epoch": epoch, "warmup": False, "deferred": {}}
        bound = BoundPlan(plan.kernel, state)
        session = CompiledSession(programs, state, None, network._plan_cache.step_options)

        def eager(batch: Any) -> dict[str, Any]:
            eager_steps.append(epoch)
            return bound.step(batch)

        return session.step(eager)

    runs = [open_session(epoch) for epoch in (7, 8)]
    for _ in range(4):
        for run in runs:
            assert run({"x": torch.ones(2)})["y"].tolist() == [2, 2]
    # The first step of each session is eager, and the program's first one is verified.
    assert eager_steps == [7, 8, 7]
    assert [record.epoch for record in records.latest] == [7]


def test_networks_in_two_threads_are_traced_one_after_the_other() -> None:
    models = [built(), built()]
    networks = [network_of(model) for model in models]
    start = threading.Barrier(2)

    def run(network: TorchNetwork) -> None:
        with network("train", 1):
            start.wait()
            for size in (5, 6, 7, 5, 6):
                for batch in batches(4, size):
                    network.run_step(batch)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(run, networks))
    # what a tracer does to modules of all threads is nobody's change
    assert [captured(network) for network in networks] == [2, 2]
    assert_same_weights(*models)


def test_steps_and_contexts_leave_no_objects_behind() -> None:
    network = network_of(built(lambda: nn.Linear(6, 3), OPTIMIZERS["adam"]))
    (batch,) = batches(1)

    def run(contexts: int, steps: int) -> int:
        for epoch in range(1, contexts + 1):
            with network("train", epoch):
                for _ in range(steps):
                    network.run_step(batch)
        gc.collect()
        return len(gc.get_objects())

    run(3, 10)
    before = run(2, 10)
    assert run(20, 50) - before < 40
    assert captured(network) == 1


def test_a_copy_of_a_network_captures_its_own_steps() -> None:
    model = built(lambda: nn.Linear(6, 3))
    network = network_of(model)
    with network("train", 1):
        for batch in batches(3):
            network.run_step(batch)
    other = copy.deepcopy(network)
    assert other.traces == ()
    with network("train", 1), other("train", 1):
        for batch in batches(5):
            loss, same = network.run_step(batch)["loss"], other.run_step(batch)["loss"]
            torch.testing.assert_close(loss, same)
    assert captured(other) == captured(network) == 1
    assert_same_weights(model, other.models[0])


def test_slices_of_batches() -> None:
    def make(compile: Any) -> TorchNetwork:
        ops = network_of(built(lambda: nn.Linear(6, 3))).ops
        slicers = [AxisSlicer(0, slice=["x", "y"], unslice=["pred"]), MeanUnslicer("loss")]
        return TorchNetwork(ops, slicers=slicers, compile=compile)

    assert captured(run_both(make, batches(6, size=4))) == 1
