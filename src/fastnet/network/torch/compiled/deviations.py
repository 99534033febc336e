"""Measures how far a tensor is from that of the same step run eagerly."""

from __future__ import annotations

import torch

from fastnet.network.deviations import Deviation


def deviation_of(
    found: torch.Tensor,
    expected: torch.Tensor,
    found_before: torch.Tensor | None = None,
    expected_before: torch.Tensor | None = None,
) -> Deviation:
    """Compare a tensor with that of a reference step.

    Args:
        found: The tensor after a step.
        expected: The tensor after the reference step, of the same shape and dtype.
        found_before: The tensor before the step; None for results, of which values are compared.
        expected_before: The tensor before the reference step.
    """
    found, expected = found.detach().to(expected.device), expected.detach()
    size = expected.numel()
    if not (expected.is_floating_point() or expected.is_complex()):
        return Deviation(0.0, 0.0, 0.0, 0.0, _share(found != expected), size)
    share, eps = 0.0, torch.finfo(expected.dtype).eps
    if not (found.isfinite().all() and expected.isfinite().all()):
        is_same = (found == expected) | (found.isnan() & expected.isnan())
        finite = found.isfinite() & expected.isfinite()
        share = _share(~(finite | is_same))
        found, expected = torch.where(finite, found, 0), torch.where(finite, expected, 0)
    if found.dtype in (torch.float16, torch.bfloat16):  # Differences could overflow.
        found, expected = found.float(), expected.float()
    if found_before is None or expected_before is None:
        norm = _norm(expected)
        # Zeros may be differences of numbers of size 1.
        rounding = 0.0 if norm else eps * size**0.5
        return Deviation(_norm(found - expected), _norm(found), norm, rounding, share, size)
    difference = found - expected
    if found_before is not expected_before:
        difference -= found_before - expected_before
    change, expected_change = _norm(found - found_before), _norm(expected - expected_before)
    rounding = eps * _norm(expected)
    return Deviation(_norm(difference), change, expected_change, rounding, share, size)


def _norm(tensor: torch.Tensor) -> float:
    """Return the Euclidean norm of the finite elements."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    norm = float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
    if norm != norm or norm == float("inf"):
        return float(torch.linalg.vector_norm(tensor.nan_to_num(0, 0, 0), dtype=torch.float64))
    return norm


def _share(differs: torch.Tensor) -> float:
    return float(differs.sum()) / max(differs.numel(), 1)
