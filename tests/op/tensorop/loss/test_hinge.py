"""Hinge loss."""

from __future__ import annotations

import pytest
import torch

from fastnet.op.tensorop.loss import Hinge


@pytest.mark.parametrize("built", [True, False])
def test_values(built: bool) -> None:
    y_pred, truth = torch.tensor([[0.5, -2.0], [3.0, 1.0]]), torch.tensor([[1, -1], [-1, 1]])
    for average, wanted in ((True, 1.125), (False, [0.25, 2.0])):
        op = Hinge(("p", "t"), "loss", average_loss=average)
        if built:
            op.build("torch", torch.device("cpu"))
        assert op.forward([y_pred, truth], {}).tolist() == wanted
