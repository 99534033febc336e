"""Entering a network: who is in, what it shows, and what it leaves."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import Delete, LambdaOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from fastnet.slicer import AxisSlicer
from tests.network.programs import (
    batches,
    built,
    is_free,
    line,
    mlp,
    regression,
    run,
    run_all,
    same_weights,
    supervised,
    weights,
)


def not_open() -> Any:
    return pytest.raises(ValueError, match=r'TorchNetwork is not open.*with network\(mode="train"')


def doubling() -> TorchNetwork:
    return TorchNetwork([LambdaOp(lambda x: 2 * x, "x", "y")])


class TestEntering:
    def test_another_network_inside_a_step(self) -> None:
        inner = doubling()
        outer = TorchNetwork([LambdaOp(lambda x: run(inner, {"x": x})["y"] + 1, "x", "y")])
        assert run(outer, {"x": 3})["y"] == 7
        model = built(line)
        training = TorchNetwork(
            [*regression(model), LambdaOp(lambda x: run(inner, {"x": x}), "x", "z")]
        )
        before = weights(model)
        assert torch.equal(
            run(training, {"x": torch.ones(1, 2)}, "train")["z"]["y"], torch.full((1, 2), 2.0)
        )
        assert not same_weights(model, before)


class TestNotOpen:
    def test_a_configuration_that_failed_takes_the_one_before_with_it(self) -> None:
        network = TorchNetwork(
            [LambdaOp(lambda x: x, "x", "y")],
            slicers=AxisSlicer(axis=0, slice="x", unslice=None, mode="train"),
        )
        network(mode="infer", epoch=1)
        with pytest.raises(ValueError, match="unslices"):
            network(mode="train", epoch=1)
        with not_open(), network:
            pass


def test_a_network_that_is_never_entered_changes_nothing() -> None:
    model = built(mlp, EpochScheduler({1: "sgd", 2: "adam"}))
    ops = supervised(model)
    ops.insert(2, UpdateOp(model, "loss"))
    network = fastnet.Network(ops)
    before = [copy.copy(vars(op)) for op in ops]
    optimizer = model.current_optimizer
    flags = [module.training for module in model.modules()]
    for mode, epoch in (("train", 2), ("eval", 1), ("train", 1)):
        network(mode=mode, epoch=epoch, warmup=True)
    assert [vars(op) for op in ops] == before
    assert model.current_optimizer is optimizer
    assert [module.training for module in model.modules()] == flags
    run_all(network, batches(2), epoch=2)
    assert is_free(network)


def test_keys_with_slicers_and_deletes() -> None:
    model = built(mlp)
    loss = LambdaOp(lambda y, t: (y.sum(1) - t).mean(), ["y", "t"], "loss", mode="!infer")
    slicer = AxisSlicer(axis=0, slice="q", unslice=["q", "y"], mode="eval")
    ops = [ModelOp(model, "x", "y"), loss, UpdateOp(model, "loss"), Delete("y", mode="test")]
    network = TorchNetwork(ops, slicers=slicer)
    with network(mode="eval", epoch=1, desired_output_keys={"y"}) as opened:
        assert opened.ctx_inputs == {"x", "t", "q"}
        assert opened.ctx_gpu_inputs == {"x", "t"}
        assert opened.ctx_outputs == {"y"}
        assert opened.ctx_slicers == [slicer]
    with network(mode="test", epoch=1) as opened:
        assert opened.ctx_outputs == {"loss"}


def test_nones_and_single_items() -> None:
    op = LambdaOp(lambda x: x, "x", "y")
    pop = NumpyLambdaOp(lambda y: y, "y", "z")
    slicer = AxisSlicer(axis=0, slice="x", unslice=None)
    ops = [None, op, None]
    network = TorchNetwork(ops, [None, pop], slicer)
    ops.clear()
    assert (network.ops, network.postprocessing, network.slicers) == ([op], [pop], [slicer])
    network = TorchNetwork(op, pop, None)
    assert (network.ops, network.postprocessing, network.slicers) == ([op], [pop], [])
