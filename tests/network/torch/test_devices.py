"""Devices of values, models and optimizers; test_cuda.py tests what needs a GPU."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import nn

from fastnet.network import Network, TorchNetwork
from fastnet.network.torch.session import move_optimizer
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp
from tests.network.programs import built, line, regression, run

# the module, which must not hide torch itself
network_torch = importlib.import_module("fastnet.network.torch.network")

CPU, META = torch.device("cpu"), torch.device("meta")


class Movable(nn.Linear):
    """A model that notes where it is told to go."""

    def __init__(self) -> None:
        super().__init__(2, 1)
        self.log: list[Any] = []

    def to(self, device: Any) -> Movable:  # type: ignore[override]
        self.log.append(device)
        return self


def test_ops_read_values_on_the_device_and_results_may_stay_there() -> None:
    """The "meta" device holds no values, but it shows what is sent there."""
    seen: list[bool] = []

    def look(x: Any, nest: Any) -> Any:
        seen.extend([x.is_meta, nest["deep"][0][0].is_meta])
        return [x.requires_grad_() + 1, {"y": x}]

    network = TorchNetwork(
        [LambdaOp(look, ["x", "nest"], ["y", "z"])], device="meta", returns="device"
    )
    nest = {"deep": [(torch.ones(1), "word")]}
    batch = {"x": torch.ones(2), "nest": nest, "unread": torch.ones(2)}
    result = run(network, batch, "train", desired_output_keys={"y"})
    assert seen == [True, True]
    assert set(result) == {"x", "nest", "unread", "y"}
    assert result["y"].is_meta
    assert not result["y"].requires_grad
    # The values of the batch were copied.
    assert all(result[key] is value for key, value in batch.items())


class TestModels:
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

    @pytest.mark.filterwarnings("error")
    def test_nothing(self) -> None:
        model = built(line)
        network = Network(regression(model), returns=None)
        before = model.weight.detach().clone()
        batch = {"x": torch.ones(1, 2)}
        assert run(network, batch, "train") == batch
        assert not torch.equal(before, model.weight.cpu())
        assert set(run(network, batch, "train", desired_output_keys=["loss"])) == {"x", "loss"}


def test_models_come_back_when_one_does_not_fit() -> None:
    class Huge(Movable):
        def to(self, device: Any) -> Movable:  # type: ignore[override]
            if device == META:
                raise RuntimeError("out of memory")
            return super().to(device)

    small, huge = built(Movable), built(Huge)
    network = TorchNetwork(
        [ModelOp(small, "x", "y"), ModelOp(huge, "x", "z")], device="meta", keep_on_device=False
    )
    with pytest.raises(RuntimeError, match=r"^out of memory$"), network(mode="eval", epoch=1):
        pass
    assert small.log == [META, CPU]


@pytest.mark.parametrize("setting", ["capturable", "fused", None])
def test_the_state_of_an_optimizer_moves(setting: str | None) -> None:
    """The count of steps stays on the CPU, unless the optimizer needs it on the device."""
    model = line()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    if setting is not None:
        optimizer.param_groups[0][setting] = True
    move_optimizer(optimizer, META)
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        assert state["exp_avg"].device == state["exp_avg_sq"].device == META
        assert state["step"].device == (CPU if setting is None else META)
