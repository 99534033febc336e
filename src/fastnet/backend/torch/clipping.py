"""Clipping of gradients."""

from __future__ import annotations

from typing import Any

import torch

from fastnet.backend.torch.wrappers import is_sharded

__all__ = ["clip_gradients"]


def clip_gradients(
    max_norm: float | None,
    max_value: float | None,
    measure: bool,
    parameters: list[torch.nn.Parameter],
) -> torch.Tensor | None:
    """Clip as `clip_grad_norm_` and `clip_grad_value_`; return the norm before, if it is needed.

    Sparse and sharded gradients are clipped, too, which these functions refuse.
    """
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
                    _local(gradient).mul_(share.to(gradient.device))
        if max_value is not None and is_plain:
            torch.nn.utils.clip_grad_value_(parameters, max_value)
        elif max_value is not None:
            for parameter in parameters:
                held = parameter.grad
                if held is not None and held.layout is torch.sparse_coo:
                    parameter.grad = _clamp_sparse(held, max_value)
                elif held is not None:
                    _local(held).clamp_(-max_value, max_value)
    return norm


def _total_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Return the norm of all gradients as one vector; 0 if there are none."""
    norms = [_norm(gradient).to(gradients[0].device) for gradient in gradients]
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())
    return total


def _norm(gradient: Any) -> torch.Tensor:
    if gradient.layout is torch.sparse_coo:
        # An index may occur twice; its values are added.
        gradient = gradient.coalesce().values()
    norm: Any = torch.linalg.vector_norm(gradient)
    found: torch.Tensor = norm.full_tensor() if is_sharded(gradient) else norm
    return found


def _local(gradient: Any) -> torch.Tensor:
    local: torch.Tensor = gradient.to_local() if is_sharded(gradient) else gradient
    return local


def _clamp_sparse(gradient: torch.Tensor, most: float) -> torch.Tensor:
    full = gradient.coalesce()
    values = full.values().clamp(-most, most)
    clamped = torch.sparse_coo_tensor(full.indices(), values, full.shape, check_invariants=False)
    return clamped.coalesce()
