"""Batches of compiled steps: shared tensors, nests, deleted keys, other devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import Delete, LambdaOp
from fastnet.op.tensorop.model import ModelOp
from tests.network.torch.compiled.steps import QUICK, built, captured, falls_back


@pytest.mark.parametrize(
    ("fn", "keys", "batch_of"),
    [
        (lambda x, y: x + 2 * y, ["x", "y"], lambda x, y: {"x": x, "y": y}),
        (lambda both: both[0] + 2 * both[1], ["x"], lambda x, y: {"x": [x, y]}),
    ],
)
def test_one_tensor_in_two_places_is_two_in_the_next_step(
    fn: Callable[..., Any], keys: list[str], batch_of: Callable[..., Any]
) -> None:
    network = TorchNetwork([LambdaOp(fn, keys, "z")], compile=QUICK)
    with network("infer", 1):
        for place in range(8):
            x = torch.full((2,), float(place))
            y = x if place < 4 else x + 1
            found = network.run_step(batch_of(x, y))["z"]
            assert torch.equal(found, x + 2 * y)
    assert captured(network) == 1


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_a_buffer_in_a_batch_is_another_tensor_in_the_next_step(mode: str) -> None:
    networks, models = [], []
    for compile in (QUICK, False):
        models.append(built(lambda: nn.BatchNorm1d(3)))
        ops = [
            ModelOp(models[-1], "x", "y"),
            LambdaOp(lambda y, z: y.sum() + z.sum(), ["y", "z"], "sum"),
        ]
        networks.append(TorchNetwork(ops, compile=compile))
    network, eager = networks
    with network(mode, 1), eager(mode, 1):
        for place in range(8):
            found, wanted = (
                one.run_step(
                    {
                        "x": torch.arange(6.0).reshape(2, 3) + place,
                        "z": model.running_mean if place < 4 else torch.full((3,), 5.0),
                    }
                )["sum"]
                for one, model in zip(networks, models, strict=True)
            )
            torch.testing.assert_close(found, wanted)


def test_nests_and_keys_that_ops_write_anew_or_delete() -> None:
    def double(nest: Any, x: torch.Tensor) -> Any:
        return {"deep": [nest["deep"][0] * 2]}, x + 1, x, x

    ops = [LambdaOp(double, ["nest", "x"], ["nest", "x", "same", "gone"]), Delete("gone")]
    network = TorchNetwork(ops, compile=QUICK)
    with network("infer", 1):
        for place in range(3):
            x = torch.full((2,), float(place))
            found = network.run_step({"x": x, "nest": {"deep": [x + 1]}, "name": "a"})
            assert found.keys() == {"x", "nest", "same", "name"}
            assert torch.equal(found["x"], x + 1)
            assert found["same"] is x
            assert torch.equal(found["nest"]["deep"][0], (x + 1) * 2)
    assert captured(network) == 1


def test_a_batch_on_another_device_runs_eagerly() -> None:
    network = TorchNetwork([LambdaOp(lambda x: x + 1, "x", "y")], compile=QUICK)
    with falls_back(
        network, "the batch's 'x' is a tensor of torch.float32, torch.strided", "infer"
    ):
        for _ in range(3):
            network.run_step({"x": torch.ones(2, device="meta")})


def test_a_network_on_another_device_runs_eagerly() -> None:
    op = LambdaOp(lambda x: x + 1, "x", "y")
    network = TorchNetwork([op], compile=QUICK, device="meta", returns="device")
    reason = "the ops run on meta; steps are captured on the CPU and on CUDA only"
    with falls_back(network, reason, "infer"):
        network.run_step({"x": torch.ones(2)})
