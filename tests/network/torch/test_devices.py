"""What a network asks of a device, without one: which values it moves, and when it waits.

A made-up device stands in for the GPU, so these tests say what is asked and in which order. That a
GPU does it is tested in test_cuda.py, where there is one.
"""

from __future__ import annotations

import importlib
import weakref
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from fastnet.network import Network, TorchNetwork
from fastnet.network.torch.runner import move_optimizer
from fastnet.op.numpyop import Delete as NumpyDelete
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp
from fastnet.schedule import RepeatScheduler
from fastnet.slicer import AxisSlicer
from tests.network.programs import built, line, no_gradients, raising, regression, run

# the module, which must not hide torch itself
network_torch = importlib.import_module("fastnet.network.torch.network")
torch_runner = importlib.import_module("fastnet.network.torch.runner")

CPU = torch.device("cpu")


class FakeDevice(NamedTuple):
    """What a network looks at of a torch.device."""

    type: str


class Pair(NamedTuple):
    left: Any
    right: Any


class Machine:
    """A computer with a device: it notes what moves, and which tensors are where."""

    def __init__(self, kind: str) -> None:
        self.device = FakeDevice(kind)
        self.log: list[tuple[str, Any]] = []
        self._there: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        self._to = torch.Tensor.to

    def holds(self, tensor: torch.Tensor) -> bool:
        return self._there.get(id(tensor)) is tensor

    def to(self, tensor: torch.Tensor, device: Any, **kwargs: Any) -> torch.Tensor:
        """Stand in for `torch.Tensor.to`."""
        if device is not self.device and device not in ("cpu", torch.device("cpu")):
            return self._to(tensor, device, **kwargs)
        copied = tensor.clone()
        if device is self.device:
            self._there[id(copied)] = copied
        self.log.append(("in" if device is self.device else "out", kwargs.get("non_blocking")))
        return copied

    def synchronize(self) -> None:
        self.log.append(("wait", None))

    def moves(self) -> list[str]:
        moves = [what for what, _ in self.log]
        self.log.clear()
        return moves


@pytest.fixture
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(getattr(request, "param", "cuda"))
    monkeypatch.setattr(network_torch, "get_device", lambda: machine.device)
    monkeypatch.setattr(torch.Tensor, "to", lambda *args, **kwargs: machine.to(*args, **kwargs))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: machine)
    return machine


class Movable(nn.Linear):
    """A model that notes where it is told to go."""

    def __init__(self) -> None:
        super().__init__(2, 1)
        self.log: list[Any] = []

    def to(self, device: Any) -> Movable:  # type: ignore[override]
        self.log.append(device)
        return self


BOTH = pytest.mark.parametrize("machine", ["cuda", "mps"], indirect=True)


class TestValues:
    @BOTH
    def test_only_what_ops_read_goes_there_and_only_what_is_wanted_comes_back(
        self, machine: Machine
    ) -> None:
        seen: list[bool] = []

        def look(x: Any, nest: Any) -> Any:
            seen.extend([machine.holds(x), machine.holds(nest["deep"][0].left)])
            made = [x + 1, {"y": x * 2}]
            for tensor in (made[0], made[1]["y"]):
                machine._there[id(tensor)] = tensor
            return made

        network = TorchNetwork([LambdaOp(look, ["x", "nest"], ["y", "z"])])
        batch = {
            "x": torch.ones(2),
            "nest": {"deep": [Pair(torch.ones(1), "word")]},
            "unread": torch.ones(2),
        }
        result = run(network, batch, desired_output_keys={"z"})
        assert seen == [True, True]
        waits = ["wait"] if machine.device.type == "cuda" else []
        assert machine.moves() == ["in", "in", "out", *waits]
        assert set(result) == {"x", "nest", "unread", "z"}
        assert not machine.holds(result["z"]["y"])
        # the batch's own values were copied, and are where they were
        assert all(result[key] is value for key, value in batch.items())

    @BOTH
    def test_cuda_does_not_wait_for_each_copy(self, machine: Machine) -> None:
        run(TorchNetwork([LambdaOp(lambda x: x, "x", "y")]), {"x": torch.ones(1)})
        queued = machine.device.type == "cuda"
        assert machine.log[:2] == [("in", queued), ("out", queued)]

    def test_one_wait_a_step_after_all_copies(self, machine: Machine) -> None:
        network = TorchNetwork([LambdaOp(lambda x, y: [x] * 3, ["x", "y"], ["a", "b", "c"])])
        batch = {"x": torch.ones(1), "y": torch.ones(1)}
        with network(mode="infer", epoch=1):
            for _ in range(3):
                network.run_step(batch)
                assert machine.moves() == ["in", "in", "out", "out", "out", "wait"]
        assert machine.moves() == []

    def test_one_wait_with_slicers_too(self, machine: Machine) -> None:
        network = TorchNetwork(
            [LambdaOp(lambda x: x, "x", "y")],
            slicers=AxisSlicer(axis=0, slice="x", unslice=["x", "y"]),
        )
        result = run(network, {"x": torch.arange(3)})
        assert machine.moves() == ["in", "out"] * 3 + ["wait"]
        assert torch.equal(result["y"], torch.arange(3))

    def test_the_wait_is_before_postprocessing_reads(self, machine: Machine) -> None:
        def look(y: Any) -> Any:
            machine.log.append(("read", None))
            return y

        network = TorchNetwork([LambdaOp(lambda x: x, "x", "y")], NumpyLambdaOp(look, "y", "z"))
        run(network, {"x": torch.ones(1)})
        moves = machine.moves()
        assert moves.index("out") < moves.index("wait") < moves.index("read")
        assert moves.count("wait") == 1

    def test_what_only_postprocessing_reads_stays(self, machine: Machine) -> None:
        network = TorchNetwork([], NumpyLambdaOp(lambda x: x, "x", "z"))
        run(network, {"x": torch.ones(1)})
        assert "in" not in machine.moves()

    @BOTH
    def test_results_are_detached(self, machine: Machine) -> None:
        model = built(Movable)
        network = TorchNetwork(regression(model))
        with network(mode="train", epoch=1, warmup=True):
            result = network.run_step({"x": torch.ones(1, 2)})
        assert network.ctx_state == {}
        for key in ("y", "loss"):
            assert result[key].grad_fn is None
            assert not result[key].requires_grad


class TestModels:
    @pytest.mark.parametrize("mode", ["train", "eval"])
    def test_go_there_and_stay(self, machine: Machine, mode: str) -> None:
        model = built(Movable)
        network = TorchNetwork([ModelOp(model, "x", "y")])
        network(mode=mode, epoch=1)
        assert model.log == []
        for count in (1, 2):
            with network(mode=mode, epoch=1):
                network.run_step({"x": torch.ones(1, 2)})
            assert model.log == [machine.device] * count

    def test_where_build_has_put_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The "meta" device holds no values, but it is another one."""
        monkeypatch.setattr(network_torch, "get_device", lambda: 1 / 0)
        models = [built(line, None, device="meta", model_name=name) for name in "ab"]
        assert next(models[0].parameters()).is_meta
        network = TorchNetwork([ModelOp(models[0], "x", "y"), ModelOp(models[1], "x", "z")])
        assert network.device == torch.device("meta")
        assert Network([ModelOp(models[0], "x", "y")], device="cpu").device == CPU

    def test_on_several(self) -> None:
        models = [
            built(line, None, device=device, model_name=f"on {device}")
            for device in ("cpu", "meta")
        ]
        with raising(
            ValueError,
            "All models of a network must be on one device, but were built on {'cpu': ['on cpu'], "
            "'meta': ['on meta']}. Build them on one device, or pass `device` to the network.",
        ):
            TorchNetwork([ModelOp(models[0], "x", "y"), ModelOp(models[1], "x", "z")])

    def test_one_that_is_elsewhere_comes_to_the_cpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch_runner, "has_accelerator", lambda: True)

        class Elsewhere(Movable):
            def parameters(self, recurse: bool = True) -> Any:
                yield SimpleNamespace(device=FakeDevice("cuda"))

        for make, log in ((Movable, []), (Elsewhere, [CPU])):
            model = built(make, None)
            with TorchNetwork([ModelOp(model, "x", "y")], device="cpu")("eval", 1):
                assert model.log == log
            assert model.log == log


class TestReturns:
    @BOTH
    def test_on_the_device(self, machine: Machine) -> None:
        network = TorchNetwork(
            [LambdaOp(lambda x: x.requires_grad_() + 1, "x", "y")], returns="device"
        )
        result = run(network, {"x": torch.ones(1)}, "train")
        assert machine.moves() == ["in"]
        assert not result["y"].requires_grad

    def test_nothing_waits_for_nothing(self, machine: Machine) -> None:
        network = TorchNetwork([LambdaOp(lambda x: x, "x", "y")], returns=None)
        run(network, {"x": torch.ones(1)})
        assert machine.moves() == ["in"]
        run(network, {"x": torch.ones(1)}, desired_output_keys=["y"])
        assert machine.moves() == ["in", "out", "wait"]

    @pytest.mark.parametrize("returns", ["cpu", None])
    def test_what_postprocessing_deletes_is_awaited(self, machine: Machine, returns: Any) -> None:
        network = TorchNetwork(
            [LambdaOp(lambda x: x, "x", "y")], postprocessing=NumpyDelete("y"), returns=returns
        )
        run(network, {"x": torch.ones(1)})
        assert machine.moves() == ["in", "out", "wait"]

    @pytest.mark.filterwarnings("error")
    def test_nothing(self) -> None:
        model = built(line)
        network = Network(regression(model), returns=None)
        before = model.weight.detach().clone()
        batch = {"x": torch.ones(1, 2)}
        assert run(network, batch, "train") == batch
        assert not torch.equal(before, model.weight.cpu())
        assert set(run(network, batch, "train", desired_output_keys=["loss"])) == {"x", "loss"}

    def test_nothing_is_what_explain_says(self) -> None:
        ops = [LambdaOp(abs, "x", "y"), LambdaOp(abs, "x", "z")]
        nothing = TorchNetwork(ops, returns=None)
        explained = nothing.explain("infer")
        unneeded = [one.keys for one in explained.findings if one.kind == "unneeded_op"]
        assert unneeded == [("y",), ("z",)]
        assert not any(key.returned for key in explained.keys)
        named = nothing.explain("infer", desired_output_keys=["y"])
        assert [(one.kind, one.keys) for one in named.findings] == [("unneeded_op", ("z",))]
        assert [key.name for key in named.keys if key.returned] == ["y"]

    def test_elsewhere(self) -> None:
        with raising(ValueError, "returns is 'cpu', 'device' or None, not 'gpu'."):
            TorchNetwork([], returns="gpu")  # type: ignore[arg-type]


class TestRoundTrip:
    """Models that do not stay on the device: FastEstimator's way."""

    @pytest.mark.parametrize("mode", ["train", "eval"])
    def test_go_there_and_come_back(self, machine: Machine, mode: str) -> None:
        model = built(Movable)
        network = TorchNetwork([ModelOp(model, "x", "y")], keep_on_device=False)
        network(mode=mode, epoch=1)
        assert model.log == []
        with network:
            assert model.log == [machine.device]
            network.run_step({"x": torch.ones(1, 2)})
            assert model.log == [machine.device]
        assert model.log == [machine.device, CPU]

    def test_come_back_after_a_failure(self, machine: Machine) -> None:
        model = built(Movable)
        network = TorchNetwork(
            [ModelOp(model, "x", "y"), LambdaOp(lambda y: 1 / 0, "y", "z")], keep_on_device=False
        )
        with pytest.raises(ZeroDivisionError):
            run(network, {"x": torch.ones(1, 2)})
        assert model.log == [machine.device, CPU]

    def test_come_back_when_one_does_not_fit(self, machine: Machine) -> None:
        class Huge(Movable):
            def to(self, device: Any) -> Movable:  # type: ignore[override]
                if device == machine.device:
                    raise RuntimeError("out of memory")
                return super().to(device)

        small, huge = built(Movable), built(Huge)
        network = TorchNetwork(
            [ModelOp(small, "x", "y"), ModelOp(huge, "x", "z")], keep_on_device=False
        )
        with pytest.raises(RuntimeError, match=r"^out of memory$"), network(mode="eval", epoch=1):
            pass
        assert small.log == [machine.device, CPU]
        huge.__class__ = Movable
        assert set(run(network, {"x": torch.ones(1, 2)})) == {"x", "y", "z"}

    def test_only_those_in_force(self, machine: Machine) -> None:
        models = [built(Movable), built(Movable)]
        network = TorchNetwork(
            [RepeatScheduler([ModelOp(model, "x", "y") for model in models])],
            keep_on_device=False,
        )
        with network(mode="eval", epoch=2):
            pass
        assert [len(model.log) for model in models] == [0, 2]

    @pytest.mark.parametrize("mode", ["train", "eval"])
    def test_optimizers_go_with_them_in_training(
        self, machine: Machine, mode: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        moved: list[Any] = []
        monkeypatch.setattr(torch_runner, "move_optimizer", lambda *args: moved.append(args))
        model = built(Movable, RepeatScheduler(["adam", "sgd"]))
        with TorchNetwork([ModelOp(model, "x", "y")], keep_on_device=False)(mode=mode, epoch=2):
            pass
        optimizer = model.current_optimizer
        assert type(optimizer) is torch.optim.SGD
        expected = [(optimizer, machine.device), (optimizer, torch.device("cpu"))]
        assert moved == (expected if mode == "train" else [])

    def test_a_model_without_an_optimizer(self, machine: Machine) -> None:
        model = built(Movable, None)
        with TorchNetwork([ModelOp(model, "x", "y")], keep_on_device=False)(mode="train", epoch=1):
            assert model.log == [machine.device]


class TestOnTheCpu:
    def test_nothing_moves(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(network_torch, "get_device", lambda: torch.device("cpu"))
        model = built(Movable)
        network = TorchNetwork([ModelOp(model, "x", "y"), LambdaOp(lambda x: x, "x", "z")])
        assert network.device == torch.device("cpu")
        x = torch.ones(1, 2)
        result = run(network, {"x": x}, "train")
        assert result["z"] is x
        assert model.log == []
        assert machine.moves() == []


def trained(make: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = line()
    optimizer = make(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


class TestMoveOptimizer:
    """The "meta" device holds no values, but it shows what is sent there."""

    META = torch.device("meta")

    @pytest.mark.parametrize(
        ("make", "keys"),
        [
            (lambda p: torch.optim.Adam(p, amsgrad=True), "exp_avg exp_avg_sq max_exp_avg_sq"),
            (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "momentum_buffer"),
            (lambda p: torch.optim.RMSprop(p, momentum=0.9), "square_avg momentum_buffer"),
            (lambda p: torch.optim.Adagrad(p), "sum"),
        ],
    )
    def test_state_goes_and_the_count_of_steps_stays(self, make: Any, keys: str) -> None:
        model, optimizer = trained(make)
        move_optimizer(optimizer, self.META)
        for parameter in model.parameters():
            state = optimizer.state[parameter]
            for key in keys.split():
                assert state[key].device == self.META
            if isinstance(state.get("step"), torch.Tensor):
                assert state["step"].device.type == "cpu"

    @pytest.mark.parametrize("setting", ["capturable", "fused"])
    def test_the_count_goes_too_where_the_optimizer_wants_it(self, setting: str) -> None:
        model, optimizer = trained(torch.optim.Adam)
        optimizer.param_groups[0][setting] = True
        move_optimizer(optimizer, self.META)
        assert optimizer.state[model.weight]["step"].device == self.META

    def test_nests_of_a_users_optimizer(self) -> None:
        model, optimizer = trained(torch.optim.SGD)
        optimizer.state[model.weight] = {
            "history": [torch.ones(1), {"deep": (torch.ones(1), 3)}],
            "name": "mine",
            "none": None,
        }
        move_optimizer(optimizer, self.META)
        state = optimizer.state[model.weight]
        assert state["history"][0].device == self.META
        assert state["history"][1]["deep"][0].device == self.META
        assert state["history"][1]["deep"][1] == 3
        assert (state["name"], state["none"]) == ("mine", None)

    def test_back_and_forth_changes_no_value(self) -> None:
        _, optimizer = trained(torch.optim.Adam)
        before = str(optimizer.state_dict())
        move_optimizer(optimizer, torch.device("cpu"))
        assert str(optimizer.state_dict()) == before

    def test_nothing_to_move(self) -> None:
        move_optimizer(None, self.META)
        model = line()
        optimizer = torch.optim.Adam(model.parameters())
        move_optimizer(optimizer, self.META)
        assert not optimizer.state
        assert no_gradients(model)

    def test_errors_are_raised(self) -> None:
        _, optimizer = trained(torch.optim.Adam)
        if torch.cuda.is_available():
            pytest.skip("there is a device to move to")
        with pytest.raises((AssertionError, RuntimeError)):
            move_optimizer(optimizer, torch.device("cuda:0"))
