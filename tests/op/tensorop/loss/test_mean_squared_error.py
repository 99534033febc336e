"""Mean squared error, against numpy and torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from fastnet.op.tensorop.loss import MeanSquaredError


def op_of(built: bool = True, **kwargs: Any) -> MeanSquaredError:
    op = MeanSquaredError(inputs=("y_pred", "y"), outputs="loss", **kwargs)
    if built:
        op.build("torch", torch.device("cpu"))
    return op


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 3), (2, 3, 4)])
@pytest.mark.parametrize("built", [True, False])
class TestValues:
    def test_against_torch_to_the_bit(self, shape: tuple[int, ...], built: bool) -> None:
        y_pred, y = torch.randn(shape), torch.randn(shape)
        own, other = y_pred.clone().requires_grad_(), y_pred.clone().requires_grad_()
        loss = op_of(built).forward([own, y], {})
        wanted = functional.mse_loss(other, y)
        assert torch.equal(loss, wanted)
        loss.backward()
        wanted.backward()
        assert torch.equal(own.grad, other.grad)
