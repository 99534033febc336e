"""Dice loss."""

from __future__ import annotations

import torch

from fastnet.op.tensorop.loss import DiceLoss


def test_weights_follow_the_channels() -> None:
    """What is kept for later steps is not taken for masks of more channels, or by another build."""
    op = DiceLoss(("p", "t"), "loss", channel_weights={1: 3.0}, channel_average=False)
    for _ in range(2):
        op.build("torch", torch.device("cpu"))
        for channels in (2, 4, 2):
            masks = torch.ones(2, channels, 4, 4)
            wanted = torch.ones(channels)
            wanted[1] = 3.0
            torch.testing.assert_close(op.forward([masks, masks], {}), -wanted)


def test_weights_made_in_inference_mode_have_gradients() -> None:
    op = DiceLoss(("p", "t"), "loss", channel_weights={0: 2.0})
    op.build("torch", torch.device("cpu"))
    truth = torch.ones(1, 2, 3, 3)
    with torch.inference_mode():
        op.forward([truth, truth], {})
    predicted = torch.full((1, 2, 3, 3), 0.5, requires_grad=True)
    op.forward([predicted, truth], {}).backward()
    # of -w * 2 * sum(p) / (sum(p) + 9), averaged over two channels, by each p
    slope = -2 * 9 / 13.5**2 / 2
    assert predicted.grad is not None
    torch.testing.assert_close(predicted.grad[0, :, 0, 0], torch.tensor([2 * slope, slope]))
