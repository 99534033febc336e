"""MixUp and CutMix on torch tensors."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Beta


def mix_up(
    samples: Tensor, labels: Tensor, alpha: float, shared: bool, beta: Any = None
) -> tuple[Tensor, Tensor]:
    """Blend each sample with the previous one, as FastEstimator does.

    The sample is weighed by ``max(share, 1 - share)``, and its label by `share` itself.
    """
    # `rsample` avoids the `no_grad` context of `sample`; the parameters need no gradients.
    if shared:
        share = label_share = _draw(alpha, beta)
        if not samples.is_cpu:
            share = label_share = share.to(samples.device)
    else:
        shape = (samples.shape[0],)
        if beta is None:
            drawn = _beta(alpha, samples.device, torch.get_default_dtype()).rsample(shape)
        else:
            drawn = torch.as_tensor(beta.sample(sample_shape=shape)).to(samples.device)
        share = drawn.reshape(-1, *(1,) * (samples.dim() - 1))
        label_share = drawn.reshape(-1, *(1,) * (labels.dim() - 1))
    # `torch.rsub` is a native call, while `1 - share` goes through Python.
    share = torch.maximum(share, torch.rsub(share, 1))
    return _blend(samples, share), _blend(labels, label_share)


def cut_mix(
    images: Tensor, labels: Tensor, alpha: float, beta: Any = None
) -> tuple[Tensor, Tensor]:
    """Paste a box of each image into the next one, and mix their labels by area."""
    height, width = images.shape[-2:]
    # The box is computed on the CPU, because its edges are needed as ints.
    share = _draw(alpha, beta)
    half = torch.sqrt(torch.rsub(torch.maximum(share, torch.rsub(share, 1)), 1)) / 2
    x, y = torch.rand(()), torch.rand(())
    left, right = _span(width, x, half)
    top, bottom = _span(height, y, half)
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = images[..., top:bottom, left:right].roll(1, 0)
    box_share = (right - left) * (bottom - top) / (height * width)
    label_share = torch.rsub(torch.tensor(box_share), 1)
    return mixed, _blend(labels, label_share)


def _blend(values: Tensor, share: Tensor) -> Tensor:
    """Add a share of each value and the rest of the previous one; integers become floats."""
    if values.dtype is not share.dtype and values.is_floating_point():
        share = share.to(values.dtype)
    return values * share + values.roll(1, 0) * torch.rsub(share, 1)


def _draw(alpha: float, beta: Any) -> Tensor:
    """Draw one share on the CPU."""
    if beta is None:
        return _beta(alpha, None, torch.get_default_dtype()).rsample()
    return torch.as_tensor(beta.sample()).cpu()


@lru_cache(maxsize=32)
def _beta(alpha: float, device: torch.device | None, dtype: torch.dtype) -> Beta:
    if device is None:
        return Beta(alpha, alpha)
    parameter = torch.tensor(alpha, device=device, dtype=dtype)
    return Beta(parameter, parameter)


def _span(length: int, middle: Tensor, half: Tensor) -> tuple[int, int]:
    """Return the start and end of a span, given its relative center and half of its length."""
    center, reach = length * middle, length * half
    first = torch.round(torch.clamp(center - reach, min=0))
    last = torch.round(torch.clamp(center + reach, max=length))
    return int(first), int(last)
