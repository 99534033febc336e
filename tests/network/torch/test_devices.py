"""What a network asks of a device, without one: which values it moves, and when it waits.

A made-up device stands in for the GPU, so these tests say what is asked and in which order. That a
GPU does it is tested in test_cuda.py, where there is one.
"""

from __future__ import annotations

import importlib
import weakref
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
from tests.network.programs import built, line, regression, run

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

    def test_the_wait_is_before_postprocessing_reads(self, machine: Machine) -> None:
        def look(y: Any) -> Any:
            machine.log.append(("read", None))
            return y

        network = TorchNetwork([LambdaOp(lambda x: x, "x", "y")], NumpyLambdaOp(look, "y", "z"))
        run(network, {"x": torch.ones(1)})
        moves = machine.moves()
        assert moves.index("out") < moves.index("wait") < moves.index("read")
        assert moves.count("wait") == 1

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
        with pytest.raises(ValueError, match=r"'cpu': \['on cpu'\], 'meta': \['on meta'\]"):
            TorchNetwork([ModelOp(models[0], "x", "y"), ModelOp(models[1], "x", "z")])


class TestReturns:
    def test_elsewhere(self) -> None:
        with pytest.raises(ValueError, match="returns is 'cpu', 'device' or None, not 'gpu'"):
            TorchNetwork([], returns="gpu")  # type: ignore[arg-type]

    @BOTH
    def test_on_the_device(self, machine: Machine) -> None:
        network = TorchNetwork(
            [LambdaOp(lambda x: x.requires_grad_() + 1, "x", "y")], returns="device"
        )
        result = run(network, {"x": torch.ones(1)}, "train")
        assert machine.moves() == ["in"]
        assert not result["y"].requires_grad

    @pytest.mark.filterwarnings("error")
    def test_nothing(self) -> None:
        model = built(line)
        network = Network(regression(model), returns=None)
        before = model.weight.detach().clone()
        batch = {"x": torch.ones(1, 2)}
        assert run(network, batch, "train") == batch
        assert not torch.equal(before, model.weight.cpu())
        assert set(run(network, batch, "train", desired_output_keys=["loss"])) == {"x", "loss"}

    @pytest.mark.parametrize("returns", ["cpu", None])
    def test_what_postprocessing_deletes_is_awaited(self, machine: Machine, returns: Any) -> None:
        network = TorchNetwork(
            [LambdaOp(lambda x: x, "x", "y")], postprocessing=NumpyDelete("y"), returns=returns
        )
        run(network, {"x": torch.ones(1)})
        assert machine.moves() == ["in", "out", "wait"]


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
