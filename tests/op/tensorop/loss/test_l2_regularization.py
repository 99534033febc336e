"""The size of a model's weights, as a loss."""

from __future__ import annotations

import torch

from fastnet.op.tensorop.loss import L2Regularizaton


def test_weights_that_come_between_steps() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False))
    op = L2Regularizaton("a", "y", model=model, beta=0.5)
    state = {"mode": "train"}
    for weight in (3.0, 5.0):
        torch.nn.init.constant_(model[0].weight, weight)
        loss = op.forward(torch.tensor(1.0), state)
        assert loss.item() == 1 + 0.5 * weight**2
        model[0] = torch.nn.Linear(2, 1, bias=False)
