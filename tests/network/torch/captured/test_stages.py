"""Steps on a device, and what of them is worked out on the CPU: see `emulated`."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from fastnet import CompileOptions, build
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import EMA, ModelOp, UpdateOp
from tests.network.torch.captured.emulated import Emulated, emulated
from tests.network.torch.captured.steps import (
    OPTIMIZERS,
    QUICK,
    assert_same_weights,
    batches,
    built,
    by_hand,
    captured,
    falls_back,
)

__all__ = ["emulated"]

OTHERS: dict[str, Any] = {
    "adamax": lambda ps: torch.optim.Adamax(ps, lr=1e-2),
    "adadelta": lambda ps: torch.optim.Adadelta(ps, lr=0.1),
    "nadam": lambda ps: torch.optim.NAdam(ps, lr=1e-2),
    "radam": lambda ps: torch.optim.RAdam(ps, lr=1e-2),
    "asgd": lambda ps: torch.optim.ASGD(ps, lr=1e-2),
    "rprop": lambda ps: torch.optim.Rprop(ps, lr=1e-3),
}


def cross_entropy(pred: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    # torch's own has no gradients on the device that stands for another one
    return -torch.log_softmax(pred, 1).gather(1, label.unsqueeze(1)).mean()


def network_of(model: Any, compile: Any = QUICK, loss: Any = cross_entropy) -> TorchNetwork:
    return TorchNetwork(
        [
            ModelOp(model, "x", "pred"),
            LambdaOp(loss, ["pred", "y"], "loss"),
            UpdateOp(model, "loss"),
        ],
        compile=compile,
    )


@pytest.mark.parametrize("name", [*OPTIMIZERS, *OTHERS])
def test_trains_as_the_loop_by_hand(emulated: Emulated, name: str) -> None:
    make = {**OPTIMIZERS, **OTHERS}[name]
    model = built(optimizer=make)
    other = copy.deepcopy(model)
    optimizer = make(other.parameters())
    emulated.optimizers.append(model.current_optimizer)
    network = network_of(model)
    with network("train", 1):
        for place, batch in enumerate(batches(30)):
            for each in (model.current_optimizer, optimizer):
                each.param_groups[0]["lr"] *= 0.9 if place % 7 == 3 else 1.0
            loss = network.run_step(batch)["loss"]
            torch.testing.assert_close(loss, by_hand(other, optimizer, batch), rtol=1e-4, atol=1e-5)
    assert captured(network) == 1
    assert_same_weights(model, other, rtol=1e-3)
    own = model.current_optimizer.state_dict()["state"]
    for place, state in optimizer.state_dict()["state"].items():
        for key in set(state) & {"step", "mu_product"}:
            torch.testing.assert_close(own[place][key], state[key])
    # one step op by op, one to warm up, and one replay for each of the others
    recorder = emulated.recorder
    assert (recorder.warmed, recorder.recorded, recorder.replayed) == (1, 1, 28)


def test_a_step_that_only_infers_is_traced_for_cuda(emulated: Emulated) -> None:
    emulated.device = torch.device("cuda:0")
    model = built()
    shift = torch.tensor(2.0)

    def shifted(x: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(3, device=x.device) + torch.tensor([1, 2, 3], device=x.device)
        return x.softmax(1) + shift + rows

    ops = [ModelOp(model, "x", "pred"), LambdaOp(shifted, "pred", "y")]
    network = TorchNetwork(ops, compile=QUICK)
    with network("infer", 1):
        for batch in batches(6):
            shift.add_(1)
            found = network.run_step(batch)["y"]
            with torch.no_grad():
                expected = model(batch["x"]).softmax(1) + shift + torch.tensor([1, 3, 5])
            torch.testing.assert_close(found, expected)
    assert captured(network) == 1
    assert emulated.recorder.replayed == 4
    (stages,) = emulated.stages
    assert stages.device == emulated.device


@pytest.mark.slow
def test_by_inductor(emulated: Emulated) -> None:
    model = built(optimizer=OPTIMIZERS["adam"])
    other = copy.deepcopy(model)
    optimizer = OPTIMIZERS["adam"](other.parameters())
    emulated.optimizers.append(model.current_optimizer)
    network = network_of(model, CompileOptions())
    with network("train", 1):
        for batch in batches(20):
            loss = network.run_step(batch)["loss"]
            torch.testing.assert_close(loss, by_hand(other, optimizer, batch), rtol=1e-4, atol=1e-5)
    assert captured(network) == 1
    assert emulated.recorder.replayed == 18
    assert_same_weights(model, other, rtol=1e-3)


def test_what_the_cpu_works_out_comes_in_one_tensor(emulated: Emulated) -> None:
    model = built(optimizer=OPTIMIZERS["adam"])
    emulated.optimizers.append(model.current_optimizer)
    network = network_of(model)
    with network("train", 1):
        network.run_step(batches(1)[0])
    (stages,) = emulated.stages
    before, on_device = stages.stages
    assert not before.is_on_device
    assert on_device.is_on_device
    brought = [one for one in on_device.examples() if one.dtype is torch.float64]
    assert len(brought) == 1
    assert {one.device.type for one in on_device.examples()} == {"meta"}
    assert {one.device.type for one in before.examples()} == {"cpu"}
    # what it reads of the batch, and writes to, is taken as it is
    counts = [state["step"] for state in model.current_optimizer.state.values()]
    assert len(before.examples()) == len(counts) + 1


def test_states_that_are_loaded_are_recorded_anew(emulated: Emulated) -> None:
    model = built(optimizer=OPTIMIZERS["adam"])
    other = copy.deepcopy(model)
    optimizer = OPTIMIZERS["adam"](other.parameters())
    emulated.optimizers.append(model.current_optimizer)
    network = network_of(model)
    with network("train", 1):
        for place, batch in enumerate(batches(20)):
            if place == 5:
                kept = copy.deepcopy(model.current_optimizer.state_dict())
                weights = copy.deepcopy(model.state_dict())
            if place == 12:
                for each, own in ((model, model.current_optimizer), (other, optimizer)):
                    own.load_state_dict(copy.deepcopy(kept))
                    each.load_state_dict(weights)
            loss = network.run_step(batch)["loss"]
            torch.testing.assert_close(loss, by_hand(other, optimizer, batch), rtol=1e-4, atol=1e-5)
    assert captured(network) == 1
    assert emulated.recorder.recorded == 2
    assert_same_weights(model, other, rtol=1e-3)


@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("settings", [{}, {"merge_grad": 3}])
def test_scaled_losses_that_overflow(
    emulated: Emulated, name: str, settings: dict[str, Any]
) -> None:
    def make(compile: Any) -> tuple[Any, TorchNetwork]:
        torch.manual_seed(0)
        model = build(
            lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)),
            optimizer_fn=OPTIMIZERS[name],
        )
        model.optimizer.scaler = torch.amp.GradScaler("cpu", growth_interval=3)
        ops = [
            ModelOp(model, "x", "pred"),
            LambdaOp(lambda p, y, s: cross_entropy(p, y) * s, ["pred", "y", "scale"], "loss"),
            UpdateOp(model, "loss", **settings),
        ]
        return model, TorchNetwork(ops, compile=compile)

    model, network = make(QUICK)
    other, eager = make(False)
    emulated.optimizers.append(model.current_optimizer)
    with network("train", 1), eager("train", 1):
        for place, batch in enumerate(batches(40)):
            scale = float("inf") if place in (1, 10, 20, 21) else 1.0
            batch = {**batch, "scale": torch.tensor(scale)}
            network.run_step(batch)
            eager.run_step(batch)
            assert model.optimizer.scaler.state_dict() == other.optimizer.scaler.state_dict(), place
    assert captured(network) == min(settings.get("merge_grad", 1), 3)
    assert emulated.recorder.replayed > 20
    assert_same_weights(model, other, rtol=1e-3)
    own = model.optimizer.state_dict()["state"]
    for place, state in other.optimizer.state_dict()["state"].items():
        assert own[place].get("step") == state.get("step")


def test_gradients_that_are_added_up_and_averages(emulated: Emulated) -> None:
    def make(compile: Any) -> tuple[Any, Any, TorchNetwork]:
        model = built(optimizer=OPTIMIZERS["adam"])
        ema = EMA(model, 0.5)
        ops = [
            ModelOp(model, "x", "pred"),
            LambdaOp(cross_entropy, ["pred", "y"], "loss"),
            UpdateOp(model, "loss", merge_grad=3),
            ema,
        ]
        return model, ema, TorchNetwork(ops, compile=compile)

    model, average, network = make(QUICK)
    other, same, eager = make(False)
    emulated.optimizers.append(model.current_optimizer)
    with network("train", 1), eager("train", 1):
        for batch in batches(20):
            found, expected = network.run_step(batch), eager.run_step(batch)
            torch.testing.assert_close(found["loss"], expected["loss"], rtol=1e-4, atol=1e-5)
    assert captured(network) == 3
    assert_same_weights(model, other, rtol=1e-3)
    assert_same_weights(average.averaged, same.averaged, rtol=1e-3)


@pytest.mark.parametrize("dynamic", [None, True])
def test_steps_for_any_number_of_rows_have_no_graph(
    emulated: Emulated, dynamic: bool | None
) -> None:
    def summed(pred: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return ((pred - label.to(pred.dtype).unsqueeze(1)) ** 2).sum()

    model = built(optimizer=OPTIMIZERS["adam"])
    other = built(optimizer=OPTIMIZERS["adam"])
    emulated.optimizers.append(model.current_optimizer)
    network = network_of(model, CompileOptions(backend="eager", dynamic=dynamic), summed)
    eager = network_of(other, False, summed)
    with network("train", 1), eager("train", 1):
        for batch in [one for size in (5, 3, 7, 4, 5) for one in batches(3, size=size)]:
            found, expected = network.run_step(batch), eager.run_step(batch)
            torch.testing.assert_close(found["loss"], expected["loss"], rtol=1e-4, atol=1e-5)
    assert_same_weights(model, other, rtol=1e-3)
    assert captured(network) == (1 if dynamic else 2)
    assert emulated.recorder.recorded == (0 if dynamic else 1)


def test_without_graphs(emulated: Emulated) -> None:
    model = built()
    other = copy.deepcopy(model)
    optimizer = OPTIMIZERS["sgd"](other.parameters())
    network = network_of(model, CompileOptions(backend="eager", cuda_graphs=False))
    with network("train", 1):
        for batch in batches(6):
            loss = network.run_step(batch)["loss"]
            torch.testing.assert_close(loss, by_hand(other, optimizer, batch), rtol=1e-4, atol=1e-5)
    assert captured(network) == 1
    assert emulated.recorder.warmed == 0


def test_where_recording_fails_steps_go_on_and_it_is_told(emulated: Emulated) -> None:
    model = built(optimizer=OPTIMIZERS["adam"])
    other = copy.deepcopy(model)
    optimizer = OPTIMIZERS["adam"](other.parameters())
    emulated.optimizers.append(model.current_optimizer)
    emulated.recorder.error = RuntimeError("operation not permitted\nand more")
    network = network_of(model)
    with network("train", 1):
        for batch in batches(6):
            loss = network.run_step(batch)["loss"]
            torch.testing.assert_close(loss, by_hand(other, optimizer, batch), rtol=1e-4, atol=1e-5)
    assert [(one.reason, one.fallback) for one in network.traces] == [
        ("first step", None),
        (
            "a step has no CUDA graph: recording one has failed with RuntimeError: operation not "
            "permitted",
            None,
        ),
    ]
    assert emulated.recorder.recorded == 1
    assert_same_weights(model, other, rtol=1e-3)


def test_an_operation_of_the_programs_own_is_called_in_each_step(emulated: Emulated) -> None:
    calls: list[int] = []

    @torch.library.custom_op("fastnet_tests::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * 2

    @doubled.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    network = TorchNetwork([LambdaOp(lambda x: doubled(x) + 1, "x", "y")], compile=QUICK)
    with network("infer", 1):
        for batch in batches(5):
            assert torch.equal(network.run_step(batch)["y"], batch["x"] * 2 + 1)
    assert len(calls) == 5
    # told when it is made
    reason, first = [one.reason for one in network.traces]
    assert first == "first step"
    assert "fastnet_tests" in reason
    assert "may do more than queue work" in reason


def test_what_goes_to_the_cpu_and_comes_back_runs_op_by_op(emulated: Emulated) -> None:
    def through(x: torch.Tensor) -> torch.Tensor:
        return x + (x.sum().cpu() + 1)

    network = TorchNetwork([LambdaOp(through, "x", "y")], compile=QUICK)
    # the device of these batches is the CPU, and only what is traced is elsewhere
    with falls_back(network, "bring to the CPU, and back", "infer"):
        for batch in batches(3):
            assert torch.equal(network.run_step(batch)["y"], through(batch["x"]))


def test_what_is_brought_to_the_cpu_is_as_it_was_before_the_update(emulated: Emulated) -> None:
    def make(compile: Any) -> tuple[Any, TorchNetwork]:
        model = built(lambda: nn.Linear(6, 3), OPTIMIZERS["adam"])
        ops = [
            LambdaOp(lambda x: model.weight[0].detach().cpu() * 1, "x", "row"),
            ModelOp(model, "x", "pred"),
            LambdaOp(cross_entropy, ["pred", "y"], "loss"),
            UpdateOp(model, "loss"),
        ]
        return model, TorchNetwork(ops, compile=compile)

    model, network = make(QUICK)
    _, eager = make(False)
    emulated.optimizers.append(model.current_optimizer)
    with network("train", 1), eager("train", 1):
        for batch in batches(8):
            found, expected = network.run_step(batch), eager.run_step(batch)
            torch.testing.assert_close(found["row"], expected["row"], rtol=1e-4, atol=1e-6)
    assert captured(network) == 1


def test_tensors_of_the_cpu_that_ops_make_and_hold(emulated: Emulated) -> None:
    class Scale:
        factor = torch.tensor(3.0, dtype=torch.float64)

        def __call__(self, x: torch.Tensor) -> Any:
            count = torch.ones((), dtype=torch.int64) * 2
            rows = torch.arange(6, dtype=torch.float64).to(x.device)
            return x * self.factor + count + rows

    scale = Scale()
    network = TorchNetwork([LambdaOp(scale, "x", "y")], compile=QUICK)
    with network("infer", 1):
        for place, batch in enumerate(batches(8)):
            scale.factor.fill_(float(place))
            expected = batch["x"] * place + 2 + torch.arange(6)
            torch.testing.assert_close(network.run_step(batch)["y"].float(), expected)
    assert captured(network) == 1
    assert emulated.recorder.replayed == 6
