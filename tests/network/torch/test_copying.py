"""Networks of torch models as values: copied, pickled, saved, sent to another process."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fastnet
from fastnet.compat import v1
from fastnet.network import TorchNetwork
from fastnet.op.numpyop import NumpyOp
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.gradient import GradientOp, Watch
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
from fastnet.slicer import AxisSlicer, MeanUnslicer
from tests.network.programs import (
    Image,
    batches,
    line,
    mlp,
    run,
    run_all,
    same_weights,
    seeded,
    sgd,
    supervised,
    weights,
)


def saved(network: Any) -> Any:
    """Save with torch, and load again."""
    file = io.BytesIO()
    torch.save(network, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def pickled(network: Any) -> Any:
    return pickle.loads(pickle.dumps(network))


WAYS = [copy.deepcopy, pickled, saved]
ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
Way = Callable[[Any], Any]


def square_mean(y: torch.Tensor) -> torch.Tensor:
    return (y**2).mean()


def by_hand(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Any], merge: int = 1
) -> None:
    """Train, with the averages of some steps' gradients."""
    for count, batch in enumerate(data, 1):
        loss = nn.functional.cross_entropy(model(batch["x"]), batch["t"])
        (loss / merge).backward() if merge > 1 else loss.backward()
        if count % merge == 0:
            optimizer.step()
            optimizer.zero_grad()


class TestACopy:
    @ways
    def test_has_models_and_optimizers_of_its_own(self, way: Way) -> None:
        schedule = EpochScheduler({1: sgd(), 3: None, 4: "adam"})
        model = fastnet.build(mlp, schedule, model_name="m")
        network = TorchNetwork(supervised(model))
        other = way(network)
        (twin,) = other.models
        assert twin is not model
        assert all(op.model is twin for op in other.ops if hasattr(op, "model"))
        own = [id(parameter) for parameter in twin.parameters()]
        for optimizer in twin.optimizer.get_all_values():
            if optimizer is not None:
                assert [
                    id(one) for group in optimizer.param_groups for one in group["params"]
                ] == own
        assert twin.current_optimizer is twin.optimizer.get_current_value(1)
        assert (twin.model_name, twin.loss_name) == ("m", {"loss"})
        assert not set(own) & {id(parameter) for parameter in model.parameters()}

    @ways
    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    def test_goes_on_as_a_loop_by_hand(self, way: Way, momentum: float) -> None:
        model, twin = seeded(mlp), seeded(mlp)
        fastnet.build(model, sgd(0.1, momentum=momentum))
        network, data = TorchNetwork(supervised(model)), batches(6)
        hand = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=momentum)
        run_all(network, data[:3])
        by_hand(twin, hand, data[:3])
        other = way(network)
        before = weights(model)
        run_all(other, data[3:])
        by_hand(twin, hand, data[3:])
        assert same_weights(other.models[0], twin)
        # and the original is where it was, and goes on as well
        assert same_weights(model, before)
        run_all(network, data[3:])
        assert same_weights(model, twin)

    @ways
    def test_changes_optimizers_as_the_original_does(self, way: Way) -> None:
        model = seeded(mlp)
        fastnet.build(model, RepeatScheduler([sgd(0.1, momentum=0.9), "adam"]))
        network, data = TorchNetwork(supervised(model)), batches(5)
        for epoch in (1, 2, 3):
            run_all(network, data[:1], epoch=epoch)
        other = way(network)
        for each in (network, other):
            for epoch in (4, 5):
                run_all(each, data[1:], epoch=epoch)
        assert same_weights(other.models[0], model)

    @ways
    def test_goes_on_in_the_middle_of_a_window(self, way: Way) -> None:
        model, twin = seeded(mlp), seeded(mlp)
        fastnet.build(model, sgd(0.1))
        network, data = TorchNetwork(supervised(model, merge_grad=4)), batches(8)
        run_all(network, data[:6])
        other = way(network)
        run_all(other, data[6:])
        run_all(network, data[6:])
        assert same_weights(other.models[0], model)
        by_hand(twin, torch.optim.SGD(twin.parameters(), lr=0.1), data, merge=4)
        for one, two in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(one, two)

    @ways
    def test_keeps_the_scaler_of_losses(self, way: Way) -> None:
        """Which torch leaves out when it copies an optimizer."""
        model = fastnet.build(seeded(mlp), sgd())
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        model.optimizer.scaler = scaler
        network, data = TorchNetwork(supervised(model)), batches(4)
        run_all(network, data[:3])
        other = way(network)
        copied = other.models[0].optimizer.scaler
        assert copied is not scaler
        assert copied.get_scale() == scaler.get_scale() == 16.0
        run_all(other, data[3:])
        run_all(network, data[3:])
        assert copied.get_scale() == scaler.get_scale() == 32.0
        assert same_weights(other.models[0], model)

    @ways
    def test_of_layers_that_differ_in_training(self, way: Way) -> None:
        """What an op knows of its model's flags is not the copy's."""
        model = fastnet.build(seeded(Image), "adam")
        network, data = TorchNetwork(supervised(model)), batches(3, (1, 8, 8))
        run_all(network, data[:1])
        other = way(network)
        other.models[0].eval()
        for each in (network, other):
            torch.manual_seed(5)
            run_all(each, data[1:])
        assert same_weights(other.models[0], model)
        assert int(model.norm.num_batches_tracked) == 3

    @ways
    def test_of_intermediate_layers(self, way: Way) -> None:
        model = fastnet.build(mlp, None)
        network = TorchNetwork([ModelOp(model, "x", ["y", "h"], intermediate_layers="1")])
        (batch,) = batches(1)
        wanted = run(network, batch)
        for _ in range(3):
            network = way(network)
        again = run(network, batch)
        assert torch.equal(again["h"], wanted["h"])
        assert len(network.models[0][1]._forward_hooks) == 1
        with torch.no_grad():
            network.models[0][0].bias += 1.0
        assert not torch.equal(run(network, batch)["h"], wanted["h"])

    @ways
    def test_of_a_model_that_uses_fastnets_names(self, way: Way) -> None:
        class_ = NamedLikeFastnet
        model = seeded(class_)
        fastnet.build(model, sgd(0.1, momentum=0.9), model_name="m")
        network, data = TorchNetwork(supervised(model)), batches(4)
        run_all(network, data[:2])
        other = way(network)
        assert isinstance(other.models[0].optimizer, nn.Sequential)
        assert "model 'm' with SGD" in str(other.explain())
        run_all(other, data[2:])
        run_all(network, data[2:])
        assert same_weights(other.models[0], model)

    @ways
    def test_of_slicers_postprocessing_and_schedules(self, way: Way) -> None:
        model = fastnet.build(mlp, sgd())
        ops = [
            Watch("x"),
            ModelOp(model, "x", "y"),
            LambdaOp(square_mean, "y", "loss"),
            EpochScheduler({1: None, 2: GradientOp(inputs="x", finals="loss", outputs="g")}),
            UpdateOp(model, "loss"),
        ]
        slicers = [AxisSlicer(axis=0, slice="x", unslice="y"), MeanUnslicer("loss")]
        network = TorchNetwork(ops, [Plus(3)], slicers)
        other = way(network)
        for epoch in (1, 2):
            (batch,) = batches(1)
            one, two = (
                run(each, batch, "eval", epoch, desired_output_keys=["y", "z", "loss"])
                for each in (network, other)
            )
            assert torch.equal(one["y"], two["y"])
            assert torch.equal(one["loss"], two["loss"])
            np.testing.assert_array_equal(one["z"], two["z"])

    def test_two_networks_that_share_a_model_still_do(self) -> None:
        model = fastnet.build(mlp, "sgd")
        pair = TorchNetwork(supervised(model)), TorchNetwork([ModelOp(model, "x", "y")])
        for way in WAYS:
            one, two = way(pair)
            assert one.models[0] is two.models[0]

    def test_what_is_written_to_its_ops_at_once_counts(self) -> None:
        model = seeded(mlp)
        fastnet.build(model, sgd())
        for way in WAYS:
            other = way(TorchNetwork(supervised(model)))
            other.ops[2].merge_grad = 2
            before = weights(other.models[0])
            run_all(other, batches(1))
            assert same_weights(other.models[0], before)
            run_all(other, batches(1))
            assert not same_weights(other.models[0], before)


class NamedLikeFastnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.optimizer = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.optimizer(x)
        return y


class Plus(NumpyOp):
    def __init__(self, count: int) -> None:
        super().__init__("y", "z")
        self.count = count

    def forward(self, data: Any, state: Any) -> Any:
        return data + self.count


class Counting(TensorOp):
    """An op of a user's own, with an __init__ of its own, that makes something in `build`."""

    __slots__ = ("factor",)

    def __init__(self, factor: float) -> None:
        super().__init__("x", "y")
        self.factor = factor
        self.library = np
        self.owner: Any = None

    def build(self, framework: str, device: Any = None) -> None:
        self.total = torch.zeros(())

    def forward(self, data: Any, state: Any) -> Any:
        self.total = self.total + self.factor
        return data * self.total


class TestOpsOfUsers:
    @pytest.mark.parametrize("way", [*WAYS, copy.copy], ids=lambda way: way.__name__)
    def test_are_copied_with_all_they_have(self, way: Way) -> None:
        network = TorchNetwork([Counting(2.0)])
        run(network, {"x": torch.ones(1)})
        op = way(network.ops[0])
        assert (op.factor, op.library, float(op.total)) == (2.0, np, 2.0)
        assert op is not network.ops[0]

    @ways
    def test_go_on_where_they_were(self, way: Way) -> None:
        network = TorchNetwork([Counting(2.0)])
        run(network, {"x": torch.ones(1)})
        other = way(network)
        assert run(other, {"x": torch.ones(1)})["y"].tolist() == [4.0]
        assert float(network.ops[0].total) == 2.0

    @ways
    def test_may_refer_to_their_network(self, way: Way) -> None:
        network = TorchNetwork([Counting(2.0)])
        network.ops[0].owner = network
        for other in (way(network), way(network.ops[0]).owner):
            assert other.ops[0].owner is other
            assert run(other, {"x": torch.ones(1)})["y"].tolist() == [2.0]


class TestOfTheOlderApi:
    @ways
    def test_goes_on(self, way: Way) -> None:
        model = seeded(mlp)
        fastnet.build(model, sgd(0.1, momentum=0.9))
        network: Any = v1.Network(supervised(model))
        data = batches(4)
        network.load_epoch("train", 1)
        for batch in data[:2]:
            network.run_step(batch)
        network.unload_epoch()
        other = way(network)
        assert other.effective_inputs == {"train": {"x", "t"}}
        for each in (network, other):
            each.load_epoch("train", 1)
            for batch in data[2:]:
                each.run_step(batch)
            each.unload_epoch()
        assert same_weights(other.models[0], model)


class Locked(LambdaOp):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lock = threading.Lock()


class Foreign(LambdaOp):
    """An op that is restored as FastEstimator restores its own."""

    def __setstate__(self, state: Any) -> None:
        raise AssertionError("not reached")

    __setstate__.__module__ = "fastestimator.op.op"


FAILURES = (AttributeError, TypeError, pickle.PicklingError)


class TestWhatCannotBe:
    @ways
    def test_an_open_network(self, way: Way) -> None:
        network = TorchNetwork([ModelOp(fastnet.build(line, None, model_name="m"), "x", "y")])
        with network("infer", 1):
            with pytest.raises(ValueError, match="TorchNetwork is open"):
                way(network)
            network.run_step({"x": torch.ones(1, 2)})
        way(network)

    def test_a_lambda_is_copied_but_not_pickled(self) -> None:
        network = TorchNetwork([LambdaOp(lambda y: y, "x", "z")])
        with pytest.raises(FAILURES, match="lambda"):
            pickle.dumps(network)
        twin = copy.deepcopy(network)
        assert run(twin, {"x": torch.ones(1, 2)})["z"].shape == (1, 2)

    @ways
    def test_a_lock(self, way: Way) -> None:
        network = TorchNetwork([Locked(square_mean, "x", "y")])
        with pytest.raises(FAILURES, match="lock"):
            way(network)

    @ways
    def test_an_op_that_another_package_pickles_in_part(self, way: Way) -> None:
        network = TorchNetwork([Foreign(square_mean, "x", "y")])
        with pytest.raises(TypeError, match=r"its Foreign.* Use fastnet's"):
            way(network)

    def test_a_pickler_that_can_do_more_is_let(self) -> None:
        """As those of cloudpickle and dill are."""
        function = give_square()

        class Able(pickle.Pickler):
            def dump(self, value: Any) -> None:
                super().dump(value)

            def reducer_override(self, value: Any) -> Any:
                return (give_square, ()) if value is function else NotImplemented

        file = io.BytesIO()
        Able(file).dump(TorchNetwork([LambdaOp(function, "x", "y")]))
        other = pickle.loads(file.getvalue())
        assert run(other, {"x": torch.tensor(3.0)})["y"] == 9.0


def give_square() -> Callable[[Any], Any]:
    return lambda y: y**2


def train_in_child(network: Any, data: list[Any], answers: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    run_all(network, data)
    answers.put({name: value.numpy() for name, value in weights(network.models[0]).items()})


@pytest.mark.slow
def test_in_a_process_of_its_own() -> None:
    model = seeded(mlp)
    fastnet.build(model, sgd(0.1, momentum=0.9))
    network, data = TorchNetwork(supervised(model, merge_grad=2)), batches(6)
    run_all(network, data[:3])
    twin = copy.deepcopy(network)
    run_all(twin, data[3:])
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    child = context.Process(target=train_in_child, args=(network, data[3:], answers))
    child.start()
    answer = answers.get(timeout=300)
    child.join()
    wanted = weights(twin.models[0])
    assert answer.keys() == wanted.keys()
    assert all(np.array_equal(answer[name], wanted[name].numpy()) for name in wanted)
