"""What captured steps cost in memory, and random programs of them that change as they go."""

from __future__ import annotations

import copy
import gc
import os
import warnings
import weakref
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from fastnet import CompileOptions
from fastnet.network import TorchNetwork
from fastnet.network.torch.captured.program import Program
from fastnet.op.tensorop import LambdaOp
from fastnet.slicer import AxisSlicer
from tests.network.torch.captured.steps import (
    OPTIMIZERS,
    QUICK,
    assert_same_weights,
    batches,
    built,
    captured,
    network_of,
)

PROGRAMS = int(os.environ.get("FASTNET_PROGRAMS", "3"))


def test_programs_of_plans_that_are_gone_are_freed() -> None:
    network = network_of(built(lambda: nn.Linear(6, 3)))
    with network("train", 1):
        for batch in batches(3):
            network.run_step(batch)
    found = [one for one in gc.get_objects() if type(one) is Program]
    assert len(found) >= 1
    gone = [weakref.ref(one) for one in found]
    del found
    network.clear_plans()
    with network("infer", 1):
        network.run_step(batches(1)[0])
    del network
    gc.collect()
    assert [one for one in gone if one() is not None] == []


def test_steps_and_openings_leave_no_objects_behind() -> None:
    network = network_of(built(lambda: nn.Linear(6, 3), OPTIMIZERS["adam"]))
    (batch,) = batches(1)

    def run(openings: int, steps: int) -> int:
        for epoch in range(1, openings + 1):
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
    results = []
    for compile in (QUICK, False):
        network = TorchNetwork(
            network_of(built(lambda: nn.Linear(6, 3))).ops,
            slicers=AxisSlicer(axis=0, slice=["x", "y"], unslice=["pred"]),
            compile=compile,
        )
        with network("train", 1, desired_output_keys=["pred"]):
            results.append([network.run_step(batch)["pred"] for batch in batches(6, size=4)])
        if compile:
            assert captured(network) == 1
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-6)


CHANGES = st.sampled_from(
    ["rate", "freeze", "thaw", "size", "load", "optimizer", "attribute", "mode", "eager", "decay"]
)


class Weighing:
    """A loss with an attribute."""

    weight = 1.0

    def __call__(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.weight


@settings(
    max_examples=PROGRAMS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    name=st.sampled_from(sorted(OPTIMIZERS)),
    changes=st.lists(st.tuples(CHANGES, st.integers(1, 3)), min_size=1, max_size=6),
    seed=st.integers(0, 2**16),
)
def test_random_programs(name: str, changes: list[tuple[str, int]], seed: int) -> None:
    sides: list[tuple[Any, TorchNetwork, Weighing]] = []
    for compile in (CompileOptions("eager", most_kinds=32), False):
        model = built(lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)),
                      OPTIMIZERS[name], seed)  # fmt: skip
        weighing = Weighing()
        plain = network_of(model, False).ops
        network = TorchNetwork(
            [*plain[:2], LambdaOp(weighing, "loss", "loss", mode="!infer"), plain[2]],
            compile=compile,
        )
        sides.append((model, network, weighing))
    kept = [copy.deepcopy(model.state_dict()) for model, *_ in sides]
    mode, eager, size, epoch, drawn = "train", False, 5, 1, seed

    def steps(count: int) -> None:
        nonlocal drawn
        found: list[list[dict[str, Any]]] = []
        drawn += 1
        for model, network, _ in sides:
            with network(mode, epoch, eager=eager):
                found.append([network.run_step(one) for one in batches(count, size, drawn)])
            assert model.training is (mode == "train")
        for one, other in zip(*found, strict=True):
            assert one.keys() == other.keys()
            for key in ("pred", "loss")[: 1 if mode == "infer" else 2]:
                torch.testing.assert_close(one[key], other[key], rtol=1e-4, atol=1e-5)

    steps(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for change, number in changes:
            epoch += 1
            if change == "mode":
                mode = ("train", "eval", "infer")[number % 3]
            elif change == "eager":
                eager = not eager
            elif change == "size":
                size = 4 + number
            for place, (model, _, weighing) in enumerate(sides):
                group = model.current_optimizer.param_groups[0]
                if change == "rate":
                    group["lr"] *= 0.7
                elif change == "decay":
                    group["weight_decay"] = 0.01 * (number - 1)
                elif change in ("freeze", "thaw"):
                    model[0].requires_grad_(change == "thaw")
                elif change == "load":
                    model.load_state_dict(kept[place])
                elif change == "optimizer":
                    model.optimizer = OPTIMIZERS[sorted(OPTIMIZERS)[number]](model.parameters())
                    model.optimizer.scaler = None
                elif change == "attribute":
                    weighing.weight = float(number)
            steps(1 + number)
    assert_same_weights(sides[0][0], sides[1][0], rtol=1e-3)
    assert any(one.fallback is None for one in sides[0][1].traces)
