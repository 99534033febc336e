"""MixUp and CutMix on torch tensors."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.distributions import Beta


def mix_up(
    samples: torch.Tensor, labels: torch.Tensor, alpha: float, shared: bool, beta: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Blend each sample of a batch with the previous one, and their labels alike."""
    dtype = torch.get_default_dtype()
    # `rsample` avoids the `no_grad` context of `sample`; the parameters need no gradients.
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
    # `torch.rsub` is a native call, while `1 - share` goes through Python.
    share = torch.maximum(share, torch.rsub(share, 1))
    # Integers are mixed as floats.
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
    """Paste a box of each image into the next one, and mix their labels by area."""
    height, width = images.shape[-2:]
    # The box is computed on the CPU, because its edges are needed as ints.
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
    """Draw one share on the CPU."""
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
    """Return the start and end of a span, given its relative center and half of its length."""
    center, reach = length * middle, length * half
    first = torch.round(torch.clamp(center - reach, min=0))
    last = torch.round(torch.clamp(center + reach, max=length))
    return int(first), int(last)
