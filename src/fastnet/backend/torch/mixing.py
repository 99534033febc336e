"""Samples mixed with each other, in PyTorch."""

from __future__ import annotations

import torch
from torch.distributions import Beta

__all__ = ["draw_beta", "draw_uniform", "paste_box", "roll_batch"]


def draw_beta(alpha: float, batch: torch.Tensor, each: bool) -> torch.Tensor:
    """Draw from a symmetric beta distribution.

    Args:
        alpha: Both of its parameters.
        batch: The batch that it is for, on the device to draw on.
        each: Whether to draw a number for each of its samples, rather than one for all.

    Returns:
        Numbers from 0 to 1, shape (batch,) or ().
    """
    if not each:
        return Beta(alpha, alpha).sample().to(batch.device)
    parameter = torch.tensor([alpha], device=batch.device)
    return Beta(parameter, parameter).sample((len(batch),)).reshape(len(batch))


def draw_uniform(like: torch.Tensor) -> torch.Tensor:
    """Draw a number from 0 to 1, on the device of a tensor."""
    return torch.rand(()).to(like.device)


def roll_batch(tensor: torch.Tensor) -> torch.Tensor:
    """Move each sample of a batch one place on, and the last to the front."""
    return torch.roll(tensor, 1, 0)


def paste_box(
    images: torch.Tensor, others: torch.Tensor, x: torch.Tensor, y: torch.Tensor, kept: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Replace a box of images by that of others.

    Args:
        images: Images, shape (batch, channels, height, width).
        others: As many images of the same shape.
        x: Where the middle of the box is, from 0 (left) to 1 (right), a scalar.
        y: Where the middle of the box is, from 0 (top) to 1 (bottom), a scalar.
        kept: How much of the area is outside of the box, before that is cut off at the edges.

    Returns:
        New images, and how much of their area is as it was, a scalar.
    """
    height, width = images.shape[-2:]
    left, right = _span(width, x, kept)
    top, bottom = _span(height, y, kept)
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = others[..., top:bottom, left:right]
    return mixed, 1 - (right - left) * (bottom - top) / torch.tensor(
        height * width, device=images.device
    )


def _span(
    length: int, middle: torch.Tensor, kept: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    size = length * torch.sqrt(1 - kept)
    first = torch.round(torch.clamp(length * middle - size / 2, min=0))
    last = torch.round(torch.clamp(length * middle + size / 2, max=length))
    return first.int(), last.int()
