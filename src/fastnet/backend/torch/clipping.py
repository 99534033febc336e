"""Clipping of gradients."""

from __future__ import annotations

from typing import Any

import torch

from fastnet.backend.torch.wrappers import is_sharded


def clip_gradients(
    max_norm: float | None,
    max_value: float | None,
    measure: bool,
    parameters: list[torch.nn.Parameter],
) -> torch.Tensor | None:
    """Clip as `clip_grad_norm_` and `clip_grad_value_`; return the norm before, if it is needed.

    Sparse and sharded gradients are clipped, too, which these functions do not support.
    """
    for one in parameters:
        if one.grad is not None and one.grad.layout is torch.sparse_coo:
            # An index may occur twice; its values are added.
            one.grad = one.grad.coalesce()
    gradients = [one.grad for one in parameters if one.grad is not None]
    is_plain = all(one.layout is torch.strided and not is_sharded(one) for one in gradients)
    norm: torch.Tensor | None = None
    with torch.no_grad():
        if max_norm is not None and gradients and is_plain:
            norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        elif max_norm is not None or measure:
            norm = _total_norm(gradients)
            if max_norm is not None:
                share = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
                for gradient in gradients:
                    _values(gradient).mul_(share.to(gradient.device))
        if max_value is not None and is_plain:
            torch.nn.utils.clip_grad_value_(parameters, max_value)
        elif max_value is not None:
            for gradient in gradients:
                _values(gradient).clamp_(-max_value, max_value)
    return norm


def _total_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Return the norm of all gradients as one vector; 0 if there are none."""
    norms = []
    for gradient in gradients:
        sharded = is_sharded(gradient)
        norm: Any = torch.linalg.vector_norm(gradient if sharded else _values(gradient))
        norms.append((norm.full_tensor() if sharded else norm).to(gradients[0].device))
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())


def _values(gradient: Any) -> torch.Tensor:
    """Return a dense tensor that shares the memory of a gradient's values on this process."""
    values: torch.Tensor = gradient
    if gradient.layout is torch.sparse_coo:
        values = gradient.values()
    elif is_sharded(gradient):
        values = gradient.to_local()
    return values
