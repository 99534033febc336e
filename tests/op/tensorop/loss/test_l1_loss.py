"""Absolute differences, in three forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from fastnet.network import TorchNetwork
from fastnet.op.tensorop.loss import L1_Loss


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"loss_type": "L2"}, "L1_Loss's loss_type is one of ['L1', 'Smooth', 'Huber'], not 'L2'."),
        ({"beta": 0}, "L1_Loss's beta is more than 0, not 0."),
        ({"beta": -1.5}, "L1_Loss's beta is more than 0, not -1.5."),
    ],
)
def test_settings(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match="L1_Loss") as caught:
        L1_Loss(("p", "t"), "loss", **settings)
    assert str(caught.value) == text


def test_keys() -> None:
    with pytest.raises(ValueError, match="L1_Loss") as caught:
        TorchNetwork([L1_Loss(["p"], "loss")])
    assert str(caught.value) == (
        "L1_Loss reads two keys, the predictions and the truth, but its inputs are ['p']."
    )


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
