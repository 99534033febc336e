"""Measures how far a tensor is from that of the same step run eagerly."""

from __future__ import annotations

import torch

from fastnet.network.deviations import Deviation


def deviation_of(
    actual: torch.Tensor,
    expected: torch.Tensor,
    actual_before: torch.Tensor | None = None,
    expected_before: torch.Tensor | None = None,
) -> Deviation:
    """Compare a tensor with that of a reference step.

    Args:
        actual: The tensor after a step.
        expected: The tensor after the reference step, of the same shape and dtype.
        actual_before: The tensor before the step; None for results, whose values are compared
            instead of their changes.
        expected_before: The tensor before the reference step.
    """
    actual, expected = actual.detach().to(expected.device), expected.detach()
    size = expected.numel()
    if not (expected.is_floating_point() or expected.is_complex()):
        return Deviation(0.0, 0.0, 0.0, 0.0, _share(actual != expected), size)

    share, eps = 0.0, torch.finfo(expected.dtype).eps
    if not (actual.isfinite().all() and expected.isfinite().all()):
        is_equal = (actual == expected) | (actual.isnan() & expected.isnan())
        is_finite = actual.isfinite() & expected.isfinite()
        share = _share(~(is_finite | is_equal))
        actual, expected = torch.where(is_finite, actual, 0), torch.where(is_finite, expected, 0)
    if actual.dtype in (torch.float16, torch.bfloat16):  # Differences could overflow.
        actual, expected = actual.float(), expected.float()

    if actual_before is None or expected_before is None:
        norm = _norm(expected)
        # A result of zeros may be a difference of numbers of size 1, with their rounding errors.
        rounding = 0.0 if norm else eps * size**0.5
        return Deviation(_norm(actual - expected), _norm(actual), norm, rounding, share, size)
    difference = actual - expected
    if actual_before is not expected_before:
        difference -= actual_before - expected_before
    change, expected_change = _norm(actual - actual_before), _norm(expected - expected_before)
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
