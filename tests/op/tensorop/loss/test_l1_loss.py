"""Absolute differences, in three forms."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from fastnet.op.tensorop.loss import L1_Loss


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("form", ["L1", "Smooth", "Huber"])
def test_against_torch(form: str, built: bool) -> None:
    y_pred, truth = 2 * torch.randn(4, 3), torch.randn(4, 3)
    op = L1_Loss(("p", "t"), "loss", loss_type=form, beta=0.5)
    if built:
        op.build("torch", torch.device("cpu"))
    wanted = {
        "L1": functional.l1_loss(y_pred, truth),
        "Smooth": functional.smooth_l1_loss(y_pred, truth, beta=0.5),
        "Huber": functional.huber_loss(y_pred, truth, delta=0.5),
    }[form]
    torch.testing.assert_close(op.forward([y_pred, truth], {}), wanted)
