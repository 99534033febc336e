"""Judges whether rounding errors explain how far a step is from the same step run uncompiled.

The frameworks measure the deviations, and run the disturbed steps that these are compared with; see
`verification_limits`. The norms are those of changes, the values after a step minus those before,
because a lost update is small beside the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastnet.network.verification_limits import Limits


class Mismatch(Exception):
    """Raised where a step differs in more than numbers; its text describes the difference."""


class Deviation(NamedTuple):
    """The difference between a value and that of a reference step, as norms.

    Attributes:
        distance: The norm of the difference.
        change: The norm of the change in this step; that of the value, if it is a result.
        expected: The norm of the change in the reference step.
        rounding: The norm of the rounding errors of the values themselves.
        share: The share of the elements that are another integer, infinite or NaN.
        size: The number of elements.
    """

    distance: float
    change: float
    expected: float
    rounding: float
    share: float
    size: int

    def exceeds(self, tolerance: float) -> bool:
        """Return whether the value differs by more than a part of its change."""
        return self.distance > tolerance * self.expected + self.rounding or self.share > 0

    def describe(self, name: str, is_change: bool) -> str:
        """Describe the deviation of a value.

        Args:
            name: The name of the value.
            is_change: Whether the norms are of a change, or else of a result.
        """
        if self.share:
            return f"{name} differs in {self.share:.2g} of its elements"
        part = self.distance / self.expected if self.expected else float("inf")
        return f"{name} differs by {part:.2%} of its {'change' if is_change else 'norm'}"


class DisturbedStep(NamedTuple):
    """A disturbed step.

    Attributes:
        deviations: How far its values are from those of the undisturbed step.
        is_redrawn: Whether it has other random numbers.
    """

    deviations: list[Deviation]
    is_redrawn: bool = False


@dataclass(frozen=True)
class Excess:
    """A deviation that disturbed steps do not explain.

    Attributes:
        index: The index of the value.
        is_unwritten: Whether the step has not changed it at all; only PyTorch reads it.
    """

    index: int
    is_unwritten: bool


def excesses(
    deviations: Sequence[Deviation],
    disturbed: Sequence[DisturbedStep],
    tolerance: float,
    limits: Limits,
) -> Iterator[Excess]:
    """Yield the deviations that are larger than rounding errors explain.

    Args:
        deviations: The deviations of a step.
        disturbed: Disturbed steps.
        tolerance: The part of a change that may always differ.
        limits: The limits of the framework.
    """
    for index, deviation in enumerate(deviations):
        if deviation.exceeds(tolerance):
            disturbances = [step.deviations[index] for step in disturbed]
            rounded = [step.deviations[index] for step in disturbed if not step.is_redrawn]
            if _is_unwritten(deviation, disturbances, rounded, limits):
                yield Excess(index, is_unwritten=True)
            elif not _is_explained(deviation, disturbances, rounded, tolerance, limits):
                yield Excess(index, is_unwritten=False)


def require_same_type(name: str, dtype: Any, shape: Any, reference: Any) -> None:
    """Raise a `Mismatch` if a tensor has another dtype or shape than that of the reference step.

    Args:
        name: The name of the tensor.
        dtype: Its dtype.
        shape: Its shape.
        reference: The tensor or array of the reference step.
    """
    if dtype != reference.dtype or shape != reference.shape:
        raise Mismatch(
            f"{name} has dtype {dtype} and shape {tuple(shape)} instead of "
            f"{reference.dtype} and {tuple(reference.shape)}"
        )


def _largest_distance(deviations: Sequence[Deviation]) -> float:
    return max((deviation.distance for deviation in deviations), default=0.0)


def _is_unwritten(
    deviation: Deviation, disturbances: list[Deviation], rounded: list[Deviation], limits: Limits
) -> bool:
    """Return whether a step leaves a value as it was, which all disturbed steps change."""
    if deviation.change != 0 or deviation.expected <= 0:
        return False
    is_noise = _largest_distance(rounded) > limits.noise * deviation.expected
    if is_noise and deviation.size < limits.few_elements:
        return False
    return all(disturbance.change for disturbance in disturbances)


def _is_explained(
    deviation: Deviation,
    disturbances: list[Deviation],
    rounded: list[Deviation],
    tolerance: float,
    limits: Limits,
) -> bool:
    """Return whether a deviation is like those of disturbed steps.

    Args:
        deviation: The deviation of a value.
        disturbances: The deviations of the value in all disturbed steps.
        rounded: Those of them in steps with the same random numbers, which rounding explains.
        tolerance: The part of a change that may always differ.
        limits: The limits of the framework.
    """
    distance, change, expected, rounding, share, _ = deviation
    largest_share = max((disturbance.share for disturbance in disturbances), default=0.0)
    if share > limits.max_ratio_of_shares * largest_share:
        return False

    moved, moved_by_rounding = _largest_distance(disturbances), _largest_distance(rounded)
    if moved_by_rounding > limits.noise * expected:
        return distance <= limits.max_ratio_of_noise * moved
    allowed = max(
        tolerance * expected + rounding,
        min(limits.max_ratio_of_few * moved_by_rounding, limits.noise * expected),
        limits.max_ratio * moved,
    )

    # Rounding errors, and other random numbers, alter the norm of a change less than the change.
    norms_moved = [abs(disturbance.change - disturbance.expected) for disturbance in disturbances]
    norm_moved = max(norms_moved, default=0.0)
    allowed_in_norm = max(
        max(limits.norm_factor * tolerance, limits.norm_tolerance) * expected + rounding,
        limits.max_norm_ratio * norm_moved,
        limits.max_norm_ratio_of_distance * moved_by_rounding,
    )
    return distance <= allowed and abs(change - expected) <= allowed_in_norm
