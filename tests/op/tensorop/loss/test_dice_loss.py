"""Dice loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastnet.op.tensorop.loss import DiceLoss


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


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 4)])
def test_ranks(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    predicted = torch.rand(shape, generator=generator)
    truth = torch.rand(shape, generator=generator).round()
    x, y = (each.double().numpy().reshape(2, 3, -1) for each in (predicted, truth))
    scores = 2 * (x * y).sum(-1) / (x.sum(-1) + y.sum(-1) + 1e-6)
    found = DiceLoss(("p", "t"), "loss").forward([predicted, truth], {})
    np.testing.assert_allclose(found.numpy(), -scores.mean(), rtol=1e-6)
