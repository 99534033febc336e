"""Samples mixed with each other, in PyTorch."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.distributions import Beta

from fastnet.backend.torch.tensors import cast_like

__all__ = ["cut_mix", "draw_beta", "mix_up", "paste_box"]


def mix_up(
    samples: torch.Tensor, labels: torch.Tensor, alpha: float, shared: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Blend each sample of a batch with the one before it, and their labels too.

    Args:
        samples: Samples, shape (batch, ...).
        labels: Labels, shape (batch, ...).
        alpha: Both parameters of the beta distribution.
        shared: Whether to draw one share for the whole batch.

    Returns:
        The blended samples and the blended labels.
    """
    share = label_share = draw_beta(alpha, samples, each=not shared)
    if not shared:
        share = share.reshape(-1, *[1] * (samples.dim() - 1))
        label_share = label_share.reshape(-1, *[1] * (labels.dim() - 1))
    share = cast_like(torch.maximum(share, 1 - share), samples)
    label_share = cast_like(label_share, labels)
    return (
        samples * share + samples.roll(1, 0) * (1 - share),
        labels * label_share + labels.roll(1, 0) * (1 - label_share),
    )


def cut_mix(
    images: torch.Tensor, labels: torch.Tensor, alpha: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Paste a box of each image into the next one of a batch, and mix their labels alike.

    Args:
        images: Images, shape (batch, channels, height, width).
        labels: Labels, shape (batch, ...).
        alpha: Both parameters of the beta distribution.

    Returns:
        The mixed images and the mixed labels.
    """
    share = draw_beta(alpha, images, each=False)
    share = torch.maximum(share, 1 - share)
    x, y = torch.rand(()), torch.rand(())
    if not images.is_cpu:
        x, y = x.to(images.device), y.to(images.device)
    mixed, kept = paste_box(images, images.roll(1, 0), x, y, share)
    kept = cast_like(kept, labels)
    return mixed, labels * kept + labels.roll(1, 0) * (1 - kept)


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
        share = _beta(alpha, None, torch.get_default_dtype()).sample()
        return share if batch.is_cpu else share.to(batch.device)
    beta = _beta(alpha, batch.device, torch.get_default_dtype())
    return beta.sample((batch.shape[0],))


@lru_cache(maxsize=32)
def _beta(alpha: float, device: torch.device | None, dtype: torch.dtype) -> Beta:
    if device is None:
        return Beta(alpha, alpha)
    parameter = torch.tensor(alpha, device=device, dtype=dtype)
    return Beta(parameter, parameter)


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
    half = torch.sqrt(1 - kept) / 2
    left, right = _span(width, x, half)
    top, bottom = _span(height, y, half)
    rows, columns = slice(int(top), int(bottom)), slice(int(left), int(right))
    mixed = images.clone()
    mixed[..., rows, columns] = others[..., rows, columns]
    return mixed, 1 - (right - left) * (bottom - top) / (height * width)


def _span(
    length: int, middle: torch.Tensor, half: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find where a part of a length begins and ends, given its middle and half of it."""
    center, reach = length * middle, length * half
    first = torch.round(torch.clamp(center - reach, min=0))
    last = torch.round(torch.clamp(center + reach, max=length))
    return first.int(), last.int()
