"""Samples mixed with each other, in PyTorch."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.distributions import Beta

__all__ = ["cut_mix", "mix_up"]


def mix_up(
    samples: torch.Tensor, labels: torch.Tensor, alpha: float, shared: bool, beta: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Blend each sample of a batch with the one before it, and their labels too.

    Args:
        samples: Samples, shape (batch, ...).
        labels: Labels, shape (batch, ...).
        alpha: Both parameters of the beta distribution.
        shared: Whether to draw one share for the whole batch.
        beta: What to draw from instead: its `sample()` gives one share, and with a `sample_shape`
            as many.

    Returns:
        The blended samples and the blended labels.
    """
    dtype = torch.get_default_dtype()
    # not `sample`, which forbids gradients first: its parameters ask for none
    if shared:
        share = label_share = _draw(alpha, beta, dtype)
        if not samples.is_cpu:
            share = label_share = share.to(samples.device)
    else:
        shape = (samples.shape[0],)
        if beta is None:
            drawn = _beta(alpha, samples.device, dtype).rsample(shape)
        else:
            drawn = torch.as_tensor(beta.sample(sample_shape=shape)).to(samples.device)
        share = drawn.reshape(-1, *(1,) * (samples.dim() - 1))
        label_share = drawn.reshape(-1, *(1,) * (labels.dim() - 1))
    # `rsub`, because torch's operator for it goes through Python
    share = torch.maximum(share, torch.rsub(share, 1))
    # whole numbers are mixed as floats
    if samples.dtype is not dtype and samples.is_floating_point():
        share = share.to(samples.dtype)
    if labels.dtype is not dtype and labels.is_floating_point():
        label_share = label_share.to(labels.dtype)
    return (
        samples * share + samples.roll(1, 0) * torch.rsub(share, 1),
        labels * label_share + labels.roll(1, 0) * torch.rsub(label_share, 1),
    )


def cut_mix(
    images: torch.Tensor, labels: torch.Tensor, alpha: float, beta: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Paste a box of each image into the next one of a batch, and mix their labels alike.

    Args:
        images: Images, shape (batch, channels, height, width).
        labels: Labels, shape (batch, ...).
        alpha: Both parameters of the beta distribution.
        beta: What to draw from instead, by its `sample()`.

    Returns:
        The mixed images and the mixed labels.
    """
    height, width = images.shape[-2:]
    # all that decides on the box stays on the CPU, where its edges are needed as ints
    dtype = torch.get_default_dtype()
    share = _draw(alpha, beta, dtype)
    half = torch.sqrt(torch.rsub(torch.maximum(share, torch.rsub(share, 1)), 1)) / 2
    x, y = torch.rand(()), torch.rand(())
    left, right = _span(width, x, half)
    top, bottom = _span(height, y, half)
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = images[..., top:bottom, left:right].roll(1, 0)
    kept = torch.rsub(torch.tensor((right - left) * (bottom - top) / (height * width)), 1)
    if labels.dtype is not dtype and labels.is_floating_point():
        kept = kept.to(labels.dtype)
    return mixed, labels * kept + labels.roll(1, 0) * torch.rsub(kept, 1)


def _draw(alpha: float, beta: Any, dtype: torch.dtype) -> torch.Tensor:
    """Draw one share, on the CPU."""
    if beta is None:
        return _beta(alpha, None, dtype).rsample()
    return torch.as_tensor(beta.sample()).cpu()


@lru_cache(maxsize=32)
def _beta(alpha: float, device: torch.device | None, dtype: torch.dtype) -> Beta:
    if device is None:
        return Beta(alpha, alpha)
    parameter = torch.tensor(alpha, device=device, dtype=dtype)
    return Beta(parameter, parameter)


def _span(length: int, middle: torch.Tensor, half: torch.Tensor) -> tuple[int, int]:
    """Find where a part of a length begins and ends, given its middle and half of it."""
    center, reach = length * middle, length * half
    first = torch.round(torch.clamp(center - reach, min=0))
    last = torch.round(torch.clamp(center + reach, max=length))
    return int(first), int(last)
