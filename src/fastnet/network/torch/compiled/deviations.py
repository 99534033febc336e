"""Judges whether rounding errors explain how far a step is from the same step run eagerly.

A program rounds otherwise than an eager step, and a model may magnify rounding errors by any
factor: a ReLU whose input is nearly 0 turns, and the first step of Adam is the sign of a gradient.
So deviations are compared with those of disturbed steps, whose inputs have errors in their last
bits. Norms are Euclidean, and those of changes: the values after a step minus those before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

# How far a change may be off, relative to its norm, by the lowest precision of a step: in the
# captured graph, which runs the kernels of the eager step, and in the compiled program.
_TOLERANCES = {
    torch.float64: (1e-10, 1e-8),
    torch.float32: (1e-5, 1e-3),
}
_LOW_PRECISION = 1e-3, 2e-2
# The norm of a change may be off by this many tolerances.
_NORM_FACTOR = 10.0

# A deviation may be this many times that of a disturbed step, in distance and in norm.
_MAX_RATIO = 3.0
# The same for the share of elements of an integer tensor that differ.
_MAX_RATIO_OF_SHARES = 2.0
# Whether a rounding error turns a ReLU or a sign is chance. Where disturbed steps hardly change a
# tensor, its distance may be this many times theirs.
_MAX_RATIO_OF_FEW = 8.0
# A change consists of rounding errors if those of a disturbed step alter it by more than this part,
# such as the change of a mean of normalized values. Another order of summation has errors of
# another size, and second moments contain the squares of these.
_NOISE = 0.5
_MAX_RATIO_OF_NOISE = 100.0


class Deviation(NamedTuple):
    """The difference between a value and that of a reference step, as norms.

    Attributes:
        distance: The norm of the difference.
        change: The norm of the change in this step; that of the value, if it is a result.
        expected: The norm of the change in the reference step.
        rounding: The norm of the rounding errors of the values themselves.
        share: The share of the elements that are another integer, infinite or NaN.
    """

    distance: float
    change: float
    expected: float
    rounding: float
    share: float

    def exceeds(self, tolerance: float) -> bool:
        """Return whether the value differs by more than a part of its change."""
        return self.distance > tolerance * self.expected + self.rounding or self.share > 0


class DisturbedStep(NamedTuple):
    """A disturbed step.

    Attributes:
        deviations: How far its values are from those of the undisturbed step.
        is_redrawn: Whether it has other random numbers.
    """

    deviations: list[Deviation]
    is_redrawn: bool


@dataclass(frozen=True)
class Excess:
    """A deviation that disturbed steps do not explain.

    Attributes:
        index: The index of the value.
        is_unwritten: Whether the step has not changed it at all.
    """

    index: int
    is_unwritten: bool


def tolerances(precision: torch.dtype) -> tuple[float, float]:
    """Return the tolerances of captured graphs and of programs, given their lowest precision."""
    return _TOLERANCES.get(precision, _LOW_PRECISION)


def first_excess(
    deviations: Sequence[Deviation], disturbed: Sequence[DisturbedStep], tolerance: float
) -> Excess | None:
    """Return the first deviation that is larger than rounding errors explain, or None.

    Args:
        deviations: The deviations of a step.
        disturbed: Disturbed steps.
        tolerance: The part of a change that may always differ.
    """
    for index, deviation in enumerate(deviations):
        if deviation.exceeds(tolerance):
            others = [step.deviations[index] for step in disturbed]
            rounded = [step.deviations[index] for step in disturbed if not step.is_redrawn]
            if deviation.change == 0 < deviation.expected and all(one.change for one in others):
                return Excess(index, is_unwritten=True)
            if not _is_explained(deviation, others, rounded, tolerance):
                return Excess(index, is_unwritten=False)
    return None


def _is_explained(
    deviation: Deviation, others: list[Deviation], rounded: list[Deviation], tolerance: float
) -> bool:
    """Return whether a deviation is like those of disturbed steps, some of which only round."""
    distance, change, expected, rounding, share = deviation
    if share > _MAX_RATIO_OF_SHARES * max((one.share for one in others), default=0.0):
        return False
    moved = max((one.distance for one in others), default=0.0)
    moved_by_rounding = max((one.distance for one in rounded), default=0.0)
    if moved_by_rounding > _NOISE * expected:
        return distance <= _MAX_RATIO_OF_NOISE * moved
    allowed = max(
        tolerance * expected + rounding,
        min(_MAX_RATIO_OF_FEW * moved_by_rounding, _NOISE * expected),
        _MAX_RATIO * moved,
    )
    # Rounding errors, and other random numbers, alter the norm of a change less than the change.
    # Where a few elements make up most of it, rounding errors may alter both alike.
    spread = max((abs(one.change - one.expected) for one in others), default=0.0)
    allowed_spread = max(
        _NORM_FACTOR * tolerance * expected + rounding,
        _MAX_RATIO * spread,
        _MAX_RATIO * moved_by_rounding,
    )
    return distance <= allowed and abs(change - expected) <= allowed_spread


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
    if not (expected.is_floating_point() or expected.is_complex()):
        return Deviation(0.0, 0.0, 0.0, 0.0, _share(found != expected))
    share, eps = 0.0, torch.finfo(expected.dtype).eps
    if not (found.isfinite().all() and expected.isfinite().all()):
        is_same = (found == expected) | (found.isnan() & expected.isnan())
        finite = found.isfinite() & expected.isfinite()
        share = _share(~(finite | is_same))
        found, expected = (torch.where(finite, one, 0) for one in (found, expected))
    if found.dtype in (torch.float16, torch.bfloat16):  # Differences could overflow.
        found, expected = found.float(), expected.float()
    if found_before is None or expected_before is None:
        norm = _norm(expected)
        # Zeros may be differences of numbers of size 1.
        rounding = 0.0 if norm else eps * expected.numel() ** 0.5
        return Deviation(_norm(found - expected), _norm(found), norm, rounding, share)
    difference = found - expected
    if found_before is not expected_before:
        difference -= found_before - expected_before
    change, expected_change = _norm(found - found_before), _norm(expected - expected_before)
    return Deviation(_norm(difference), change, expected_change, eps * _norm(expected), share)


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
