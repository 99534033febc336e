"""Focal loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from fastnet.op.tensorop.loss import FocalLoss


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"gamma": -1}, "FocalLoss's gamma is 0 or more, not -1."),
        ({"gamma": None}, "FocalLoss's gamma is 0 or more, not None."),
        ({"alpha": -1}, "FocalLoss's alpha is from 0 to 1, not -1."),
        ({"alpha": 1.5}, "FocalLoss's alpha is from 0 to 1, not 1.5."),
        (
            {"sample_reduction": "max"},
            "FocalLoss's sample_reduction is one of ['none', 'mean', 'sum'], not 'max'.",
        ),
        (
            {"shape_reduction": None},
            "FocalLoss's shape_reduction is one of ['none', 'mean', 'sum'], not None.",
        ),
    ],
)
def test_settings(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match="FocalLoss") as caught:
        FocalLoss(("p", "t"), "loss", **settings)
    assert str(caught.value) == text


def test_without_focus_it_is_cross_entropy() -> None:
    logits, truth = torch.randn(4, 3), torch.randint(0, 2, (4, 3))
    op = FocalLoss(("p", "t"), "loss", gamma=0.0, alpha=0.5, from_logits=True, normalize=False)
    wanted = functional.binary_cross_entropy_with_logits(logits, truth.float(), reduction="none")
    torch.testing.assert_close(op.forward([logits, truth], {}), wanted.sum(1).mean() / 2)
