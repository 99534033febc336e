"""Mean squared error, against numpy and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from fastnet.network import TorchNetwork
from fastnet.op.tensorop.loss import MeanSquaredError
from tests.network.programs import run
from tests.op.tensorop.loss import numpy_losses


def op_of(built: bool = True, **kwargs: Any) -> MeanSquaredError:
    op = MeanSquaredError(inputs=("y_pred", "y"), outputs="loss", **kwargs)
    if built:
        op.build("torch", torch.device("cpu"))
    return op


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 3), (2, 3, 4)])
@pytest.mark.parametrize("built", [True, False])
class TestValues:
    @pytest.mark.parametrize("average", [True, False])
    def test_against_numpy(self, shape: tuple[int, ...], built: bool, average: bool) -> None:
        y_pred, y = torch.randn(shape), torch.randn(shape)
        loss = op_of(built, average_loss=average).forward([y_pred, y], {})
        wanted = numpy_losses.mean_squared_error(y_pred.double().numpy(), y.double().numpy())
        assert loss.shape == (() if average else shape[:-1])
        np.testing.assert_allclose(loss.numpy(), wanted.mean() if average else wanted, rtol=1e-5)

    def test_against_torch_to_the_bit(self, shape: tuple[int, ...], built: bool) -> None:
        y_pred, y = torch.randn(shape), torch.randn(shape)
        own, other = y_pred.clone().requires_grad_(), y_pred.clone().requires_grad_()
        loss = op_of(built).forward([own, y], {})
        wanted = functional.mse_loss(other, y)
        assert torch.equal(loss, wanted)
        loss.backward()
        wanted.backward()
        assert torch.equal(own.grad, other.grad)

    def test_gradients_against_numbers(self, shape: tuple[int, ...], built: bool) -> None:
        y_pred = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        y = torch.randn(shape, dtype=torch.float64)
        for average in (True, False):
            op = op_of(built, average_loss=average)
            assert torch.autograd.gradcheck(lambda p, op=op: op.forward([p, y], {}), y_pred)


def test_in_a_network() -> None:
    y_pred, y = torch.randn(4, 2), torch.randn(4, 2)
    network = TorchNetwork([op_of(built=False)])
    for mode in ("train", "eval", "test"):
        result = run(network, {"y_pred": y_pred, "y": y}, mode)
        assert torch.equal(result["loss"], functional.mse_loss(y_pred, y))
    assert "loss" not in run(network, {"y_pred": y_pred, "y": y}, "infer")
