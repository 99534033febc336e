"""Focal loss."""

from __future__ import annotations

import torch
from torch.nn import functional

from fastnet.op.tensorop.loss import FocalLoss


def test_without_focus_it_is_cross_entropy() -> None:
    logits, truth = torch.randn(4, 3), torch.randint(0, 2, (4, 3))
    op = FocalLoss(("p", "t"), "loss", gamma=0.0, alpha=0.5, from_logits=True, normalize=False)
    wanted = functional.binary_cross_entropy_with_logits(logits, truth.float(), reduction="none")
    torch.testing.assert_close(op.forward([logits, truth], {}), wanted.sum(1).mean() / 2)
