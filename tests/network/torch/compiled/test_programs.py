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

from fastnet.network import TorchNetwork
from fastnet.network.torch.compiled.program import Program
from fastnet.slicer import AxisSlicer, MeanUnslicer
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    assert_same_weights,
    batches,
    built,
    captured,
    network_of,
    run_both,
)


def test_programs_of_plans_that_are_gone_are_freed() -> None:
    def programs() -> dict[int, Program]:
        return {id(one): one for one in gc.get_objects() if type(one) is Program}

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
