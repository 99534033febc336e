"""Several steps in one call: `run_steps` equals that many calls of `run_step`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fastnet
from fastnet import CompileOptions
from fastnet.network import TorchNetwork
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import EMA, LRSchedule, ModelOp, UpdateOp
from fastnet.slicer import SlidingSlicer
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    QUICK,
    assert_same_weights,
    batches,
    built,
    captured,
    cross_entropy,
    network_of,
)


def _ops(model: Any, **settings: Any) -> list[Any]:
    loss = LambdaOp(cross_entropy, ["pred", "y"], "loss", mode="!infer")
    return [ModelOp(model, "x", "pred"), loss, UpdateOp(model, "loss", **settings)]


def _plain(compile: Any) -> tuple[Any, TorchNetwork]:
    model = built(optimizer=OPTIMIZERS["adam"])
    return model, network_of(model, compile)


def _accumulating(compile: Any) -> tuple[Any, TorchNetwork]:
    model = built(optimizer=OPTIMIZERS["momentum"])
    return model, TorchNetwork(_ops(model, merge_grad=3, rest="flush"), compile=compile)


def _scheduled(compile: Any) -> tuple[Any, TorchNetwork]:
    model = built(optimizer=OPTIMIZERS["adam"])
    schedule = torch.optim.lr_scheduler.StepLR(model.current_optimizer, 2, 0.5)
    ops = [*_ops(model), LRSchedule(model, schedule, per="update")]
    return model, TorchNetwork(ops, compile=compile)


def _averaged(compile: Any) -> tuple[Any, TorchNetwork]:
    model = built(optimizer=OPTIMIZERS["adam"])
    average = EMA(model, decay=lambda count: 1 - 1 / (count + 2))
    network = TorchNetwork([*_ops(model), average], compile=compile)
    return nn.ModuleList([model, average.averaged]), network


def _sliced(compile: Any) -> tuple[Any, TorchNetwork]:
    model = built(optimizer=OPTIMIZERS["sgd"])
    slicer = SlidingSlicer(
        window_size=[2, -1], strides=[2, 0], pad_mode="drop", slice="x", unslice=["pred"]
    )
    op = LambdaOp(lambda x: x * 2, "x", "pred")
    return model, TorchNetwork(op, slicers=slicer, compile=compile)


def _postprocessed(compile: Any) -> tuple[Any, TorchNetwork]:
    model = built(optimizer=OPTIMIZERS["sgd"])
    double = NumpyLambdaOp(lambda pred: pred * 2, "pred", "double")
    return model, TorchNetwork(_ops(model), postprocessing=double, compile=compile)


KINDS = [_plain, _accumulating, _scheduled, _averaged, _sliced, _postprocessed]


@pytest.mark.parametrize("compile", [QUICK, False, CompileOptions("eager", verify=None)])
@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_several_steps_equal_single_ones(
    make: Callable[[Any], tuple[Any, TorchNetwork]], compile: Any, mode: str
) -> None:
    found = []
    for per_call in (1, 5):
        model, network = make(compile)
        data = [batches(1, size, place)[0] for place, size in enumerate([5, 5, 5, 4, 5, 4] * 4)]
        results = []
        for epoch in (1, 2):
            with network(mode, epoch):
                for first in range(0, len(data), per_call):
                    group = data[first : first + per_call]
                    if per_call == 1:
                        results.append(network.run_step(group[0]))
                    else:
                        results += network.run_steps(iter(group))
        found.append((results, list(model.state_dict().values())))
    (single, weights), (several, other_weights) = found
    assert len(single) == len(several)
    for one, other in zip(single, several, strict=True):
        assert one.keys() == other.keys()
        assert all(
            torch.equal(torch.as_tensor(one[key]), torch.as_tensor(other[key])) for key in one
        )
    assert all(map(torch.equal, weights, other_weights))


def test_no_batches_give_no_results() -> None:
    _, network = _plain(QUICK)
    with network("train", 1):
        assert network.run_steps([]) == []


def test_change_between_two_calls_is_noticed() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = [1.0]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor[0]

    scale = Scale()
    network = TorchNetwork([LambdaOp(scale, "x", "y")], compile=QUICK)
    data = [{"x": torch.ones(2)}] * 4
    with network("infer", 1):
        for factor in (1.0, 2.0, 3.0, 4.0):
            scale.factor[0] = factor
            assert [float(one["y"][0]) for one in network.run_steps(data)] == [factor] * 4


def test_error_names_the_batch_and_earlier_steps_count() -> None:
    model, network = _plain(QUICK)
    other = copy.deepcopy(model)
    data = batches(6)
    bad = {**data[4], "x": torch.ones(5, 7)}
    with network("train", 1):
        network.run_steps(data[:3])
        with pytest.raises(RuntimeError) as caught:
            network.run_steps([*data[:4], bad, data[5]])
        network.run_steps(data[4:])
    assert caught.value.__notes__[-1].startswith("Raised by the step of batch 4 of 6, counted from")
    twin = network_of(other, False)
    with twin("train", 1):
        for batch in [*data[:3], *data[:4], *data[4:]]:
            twin.run_step(batch)
    assert_same_weights(model, other)


def test_iterable_that_raises_takes_no_step() -> None:
    model, network = _plain(QUICK)
    before = copy.deepcopy(model.state_dict())

    def broken() -> Iterator[Any]:
        yield batches(1)[0]
        raise LookupError("no more")

    with network("train", 1), pytest.raises(LookupError):
        network.run_steps(broken())
    assert all(map(torch.equal, model.state_dict().values(), before.values()))


def test_single_batch_and_closed_network_are_refused() -> None:
    _, network = _plain(QUICK)
    (batch,) = batches(1)
    with pytest.raises(ValueError, match="not open"):
        network.run_steps([batch])
    with network("train", 1), pytest.raises(TypeError, match="run_steps takes an iterable"):
        network.run_steps(batch)


def test_results_are_not_kept_that_nobody_wants() -> None:
    model = built()
    network = TorchNetwork(_ops(model), returns=None, compile=QUICK)
    with network("train", 1, desired_output_keys={"loss"}):
        assert [set(one) for one in network.run_steps(batches(5))] == [{"x", "y", "loss"}] * 5
    with network("train", 2):
        data = batches(5)
        assert network.run_steps(data) == data


@pytest.mark.parametrize("per_call", [1, 4, 100])
def test_loop_runs_groups_of_batches(per_call: int) -> None:
    model, network = _plain(QUICK)
    twin, other = _plain(QUICK)
    data = batches(10)
    loop = fastnet.steps(network, data, "train", per_call=per_call)
    expected = fastnet.steps(other, data, "train")
    for (batch, result), (own, found) in zip(loop, expected, strict=True):
        assert batch is own
        assert torch.equal(result["loss"], found["loss"])
    assert loop.count == 10
    assert_same_weights(model, twin)
    assert captured(network) == 1


@pytest.mark.parametrize("per_call", [0, 1.5, "4"])
def test_loop_refuses_other_numbers_of_batches(per_call: Any) -> None:
    _, network = _plain(QUICK)
    with pytest.raises(ValueError, match="per_call is an int of at least 1"):
        fastnet.steps(network, [], "train", per_call=per_call)


def test_key_error_after_the_update_takes_the_step_once() -> None:
    def factor(count: int) -> float:
        return {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 1.0}[count]

    weights = []
    for per_call in (1, 8):
        model = built(optimizer=OPTIMIZERS["sgd"])
        schedule = torch.optim.lr_scheduler.LambdaLR(model.current_optimizer, factor)
        ops = [*_ops(model), LRSchedule(model, schedule, per="update")]
        network = TorchNetwork(ops, compile=CompileOptions("eager", verify=None))
        data = batches(1)
        with network("train", 1):
            if per_call == 1:
                network.run_steps(data[:1] * 5)
            with pytest.raises(KeyError):
                network.run_steps(data[:1] * per_call)
        assert schedule.last_epoch == 6
        weights.append(list(model.state_dict().values()))
    assert all(map(torch.equal, *weights))
