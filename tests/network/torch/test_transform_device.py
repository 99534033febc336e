"""`transform` on another device than the network's, in PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastnet.network import TorchNetwork
from fastnet.network.torch import network as networks
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp
from tests.network.programs import built, line

BATCH = {"x": torch.ones(2, 2)}


def devices_of(network: TorchNetwork, seen: list[Any]) -> LambdaOp:
    def look(y: torch.Tensor) -> torch.Tensor:
        seen.append((y.device.type, {one.device.type for one in network.models[0].parameters()}))
        return y

    return LambdaOp(look, "y", "z")


@pytest.mark.parametrize("batches", [BATCH, [BATCH, BATCH]], ids=["batch", "loader"])
def test_models_go_there_and_back(batches: Any) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    model = built(line, "adam", device="cpu")
    before = model.weight.detach().clone()
    seen: list[Any] = []
    network = TorchNetwork([ModelOp(model, "x", "y")], device="cpu")
    network.ops.append(devices_of(network, seen))
    results = network.transform(batches, "infer", device="cuda:0")
    result = results[0] if isinstance(results, list) else results
    assert set(map(repr, seen)) == {"('cuda', {'cuda'})"}
    assert model.weight.device.type == "cpu"
    assert network.device == torch.device("cpu")
    torch.testing.assert_close(result["z"], model(BATCH["x"]).detach(), rtol=1e-4, atol=1e-5)
    assert torch.equal(model.weight, before)
    seen.clear()
    network.transform(batches, "infer")
    assert set(map(repr, seen)) == {"('cpu', {'cpu'})"}


def test_no_device() -> None:
    network = TorchNetwork([LambdaOp(lambda x: x, "x", "y")])
    with pytest.raises(TypeError, match=r"^device=\[\] is of type list"):
        network.transform(BATCH, "infer", device=[])


def test_ops_run_there_and_an_error_brings_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "resolve_device", torch.device)
    seen: list[str] = []

    def look(x: torch.Tensor) -> int:
        seen.append(x.device.type)
        return len(seen)

    network = TorchNetwork([LambdaOp(look, "x", "y")], device="cpu")
    assert [one["y"] for one in network.transform([BATCH, BATCH], "infer", device="meta")] == [1, 2]
    with pytest.raises(KeyError):
        network.transform({"z": torch.ones(1)}, "infer", device="meta")
    assert network.device == torch.device("cpu")
    network.transform(BATCH, "infer")
    assert seen == ["meta", "meta", "cpu"]
