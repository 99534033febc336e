"""Dice loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastnet.op.tensorop.loss import DiceLoss


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([1.0], "DiceLoss's channel_weights is a dict, not list."),
        (
            {"a": 1.0},
            "The keys of DiceLoss's channel_weights are channel indices of type int, but 'a' is of "
            "type str.",
        ),
        (
            {1: 2},
            "The values of DiceLoss's channel_weights are of type float, but that of channel 1 is "
            "2, of type int.",
        ),
    ],
)
def test_weights_that_are_none(weights: Any, text: str) -> None:
    with pytest.raises(AssertionError) as caught:
        DiceLoss(("p", "t"), "loss", channel_weights=weights)
    assert str(caught.value) == text


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("weights", [None, {0: 2.0}, {1: 3.0}, {2: 0.5}])
def test_values(weights: dict[int, float] | None, built: bool) -> None:
    masks = torch.ones(2, 3, 4, 4)
    op = DiceLoss(("p", "t"), "loss", channel_weights=weights, channel_average=False)
    if built:
        op.build("torch", torch.device("cpu"))
    wanted = torch.ones(3)
    for index, weight in (weights or {}).items():
        wanted[index] = weight
    torch.testing.assert_close(op.forward([masks, masks], {}), -wanted)
