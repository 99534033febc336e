"""Gradients of torch parameters clipped before an optimizer's step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fastnet.backend.torch.engines import is_sharded

__all__ = ["clip_by_norm", "clip_by_value", "total_norm"]


def clip_by_norm(parameters: Iterable[torch.Tensor], most: float) -> torch.Tensor:
    """Scale gradients down so that the norm of all of them together is no larger.

    It is `torch.nn.utils.clip_grad_norm_`, for gradients that are sparse, or sharded beside others
    that are not, too. Of sharded ones the norm is that of the whole.

    Args:
        parameters: What has the gradients; those without are passed over.
        most: The largest norm, above 0.

    Returns:
        The norm before that, a scalar.
    """
    held = list(parameters)
    gradients = _gradients(held)
    if gradients and not any(map(_is_special, gradients)):
        return torch.nn.utils.clip_grad_norm_(held, most)
    norm = total_norm(held)
    share = torch.clamp(most / (norm + 1e-6), max=1.0)
    with torch.no_grad():
        for gradient in _gradients(held):
            if is_sharded(gradient):
                part: Any = gradient
                part.to_local().mul_(share.to(gradient.device))
            else:
                gradient.mul_(share.to(gradient.device))
    return norm


def clip_by_value(parameters: Iterable[torch.Tensor], most: float) -> None:
    """Bring each number of gradients between bounds, as `torch.nn.utils.clip_grad_value_` does.

    Args:
        parameters: What has the gradients; those without are passed over.
        most: The upper bound, above 0; the lower one is the same below it.
    """
    held = list(parameters)
    gradients = _gradients(held)
    if not any(map(_is_special, gradients)):
        torch.nn.utils.clip_grad_value_(held, most)
        return
    with torch.no_grad():
        for parameter in held:
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.layout is torch.sparse_coo:
                whole = gradient.coalesce()
                parameter.grad = torch.sparse_coo_tensor(
                    whole.indices(),
                    whole.values().clamp(-most, most),
                    whole.shape,
                    check_invariants=False,
                ).coalesce()
            else:
                part: Any = gradient
                local = part.to_local() if is_sharded(gradient) else gradient
                local.clamp_(-most, most)


def total_norm(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """Work out the norm of all gradients together, as if they were one vector.

    Args:
        parameters: What has the gradients; those without are passed over.

    Returns:
        The norm, a scalar; 0 if there is no gradient.
    """
    gradients = _gradients(parameters)
    if not gradients:
        return torch.zeros(())
    with torch.no_grad():
        device = gradients[0].device
        norms = [_norm(gradient).to(device) for gradient in gradients]
        total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return total


def _norm(gradient: torch.Tensor) -> torch.Tensor:
    if is_sharded(gradient):
        whole: Any = torch.linalg.vector_norm(gradient)
        found: torch.Tensor = whole.full_tensor()
        return found
    if gradient.layout is torch.sparse_coo:
        # indices may stand there twice, whose values count as one
        gradient = gradient.coalesce().values()
    norm: torch.Tensor = torch.linalg.vector_norm(gradient)
    return norm


def _gradients(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [one.grad for one in parameters if one.grad is not None]


def _is_special(gradient: torch.Tensor) -> bool:
    return gradient.layout is not torch.strided or is_sharded(gradient)
