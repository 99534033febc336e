"""Judges whether a compiled step changes a value as the uncompiled step does, up to rounding.

Two programs of the same step round differently, and a model may magnify rounding errors by any
factor: Adam's first step is the sign of a gradient. The scale is therefore how far the uncompiled
step itself moves when its inputs are disturbed in their last bits. The norms are of changes, the
values after a step minus those before, since a lost update is small beside the weights.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

TOLERANCES = {"float64": 1e-8, "float32": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}
"""Relative differences of changes that are rounding errors, by the lowest precision of a step."""
EPSILONS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The distances from 1 to the next larger number."""
ROUNDING_ERRORS = {
    "float64": 2.0**-49,
    "float32": 2.0**-20,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}
"""Relative errors that results of a few operations have."""

DISTURBANCES = (1, 1, 2, 2, 4, 4)
"""The sizes of the relative errors in disturbed steps, one after the other.

A rounding error now and then turns a ReLU whose input is near 0, which moves gradients by more than
all other errors, so that a few steps with small errors may miss it. A larger error is used only
where smaller ones do not explain a difference. There are several steps because one of them may by
chance hardly move a value that has few elements.
"""

# A compiled change may be this many times as far from the uncompiled one as a disturbed one is.
_FACTOR = 10.0
# A change that a disturbance alters by half is made of rounding errors. Another order of summation
# alters their size, of which second moments are the square.
_NOISE = 0.5
_NOISE_FACTOR = 1000.0
# The norm of a change hardly depends on which signs a disturbance turns.
_LENGTH_TOLERANCE = 0.25
# Fewer rounding errors than these may all happen to be 0.
_FEW_ELEMENTS = 4
# The number of elements that are converted to float64 at a time.
_CHUNK = 1 << 20


class Run(NamedTuple):
    """The change of a value in one run of a step, as norms.

    For integers and booleans the norms are numbers of elements.

    Attributes:
        change: The L2 norm of the change.
        difference: The L2 norm of the difference from the change in the uncompiled step; infinite
            if other elements are not finite, or if the shape or dtype differs.
    """

    change: float
    difference: float


@dataclasses.dataclass
class Comparison:
    """The compiled and the uncompiled change of one value.

    Attributes:
        change: The norm of the uncompiled change.
        compiled: The run of the compiled step.
        size: The number of elements.
        tolerance: The relative difference that is always allowed.
        rounding: The norm of the difference that is always allowed, such as what rounding the
            stored value makes.
        is_exact: Whether the value consists of integers or booleans.
        disturbed: Runs of the uncompiled step with disturbed inputs.
    """

    change: float
    compiled: Run
    size: int
    tolerance: float
    rounding: float
    is_exact: bool = False
    disturbed: list[Run] = dataclasses.field(default_factory=list)

    def describe_difference(self) -> str | None:
        """Describe a difference that the disturbed runs do not explain; None if there is none."""
        change, compiled = self.change, self.compiled
        if math.isinf(compiled.difference):
            return "its shape, dtype or non-finite elements differ"
        disturbance = max((run.difference for run in self.disturbed), default=0.0)
        if self.is_exact:
            if compiled.difference <= disturbance:
                return None
            return f"{compiled.difference:.0f} of {self.size} elements differ"
        allowed = max(self.tolerance * change, self.rounding)
        if compiled.difference <= allowed:
            return None
        is_noise = disturbance > _NOISE * change
        if self._is_left_alone(is_noise):
            return "it does not change"
        allowed = max(allowed, (_NOISE_FACTOR if is_noise else _FACTOR) * disturbance)
        if compiled.difference > allowed:
            return f"the difference is {_percent(compiled.difference, change)}" + (
                f", where rounding explains {_percent(allowed, change)}" if change else ""
            )
        lengths = max((abs(run.change - change) for run in self.disturbed), default=0.0)
        allowed = max(_LENGTH_TOLERANCE * change, _FACTOR * lengths, self.rounding)
        if not is_noise and abs(compiled.change - change) > allowed:
            return f"its change has {_percent(compiled.change, change)} of the size"
        return None

    def _is_left_alone(self, is_noise: bool) -> bool:
        if self.compiled.change or self.change <= self.rounding:
            return False
        if is_noise and self.size < _FEW_ELEMENTS:
            return False
        return all(run.change for run in self.disturbed)


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.3g} %" if whole else f"{part:.3g}"


def compare(before: Any, expected: Any, run: Any, precision: str) -> Comparison:
    """Compare an array after a compiled step with that after the uncompiled step.

    Args:
        before: The array before both; None for results, of which the values are compared.
        expected: The array after the uncompiled step.
        run: The array after the compiled step.
        precision: The name of the dtype of the lowest precision in the step.
    """
    change, compiled = measure(before, expected, before, run)
    rounding = 0.0
    if is_inexact(expected):
        if before is not None:
            rounding = 2 * EPSILONS.get(expected.dtype.name, EPSILONS["float32"]) * norm(before)
        if before is None or not change:
            # Compared with quantities of size 1, which may have cancelled.
            rounding += EPSILONS[precision] * math.sqrt(expected.size)
    is_exact = not is_inexact(expected)
    return Comparison(
        change, compiled, expected.size, TOLERANCES[precision], rounding, is_exact=is_exact
    )


def measure(before: Any, expected: Any, run_before: Any, run: Any) -> tuple[float, Run]:
    """Compare the change of an array in two runs.

    Args:
        before: The array before the uncompiled step; None for zeros.
        expected: The array after it.
        run_before: The array before another run; None for zeros.
        run: The array after that run.

    Returns:
        The norm of the uncompiled change, and the other run.
    """
    if run.shape != expected.shape or run.dtype != expected.dtype:
        return 0.0, Run(0.0, math.inf)
    if not is_inexact(expected):
        changes = float(expected.size if before is None else np.sum(expected != before))
        run_changes = float(run.size if run_before is None else np.sum(run != run_before))
        return changes, Run(run_changes, float(np.sum(run != expected)))
    squares = np.zeros(3)
    chunks = [_chunks(array, expected) for array in (before, expected, run_before, run)]
    for start, end, run_start, run_end in zip(*chunks, strict=True):
        finite = np.isfinite(end)
        if not np.array_equal(end[~finite], run_end[~finite], equal_nan=True):
            return 0.0, Run(0.0, math.inf)
        # What was infinite before is compared by its value.
        start, run_start = (np.where(np.isfinite(one), one, 0) for one in (start, run_start))
        change, run_change = (end - start)[finite], (run_end - run_start)[finite]
        squares += [
            float(np.sum(np.abs(values) ** 2))
            for values in (change, run_change, run_change - change)
        ]
    change, run_change, difference = map(float, np.sqrt(squares))
    return change, Run(run_change, math.inf if math.isnan(difference) else difference)


def norm(array: Any) -> float:
    """Return the L2 norm of the finite elements of an array of floating-point numbers."""
    chunks = (chunk[np.isfinite(chunk)] for chunk in _chunks(array, array))
    return math.sqrt(sum(float(np.sum(np.abs(chunk) ** 2)) for chunk in chunks))


def disturb(array: Any, size: float, source: np.random.Generator) -> Any:
    """Return an array with relative errors of a given size.

    Whole numbers stay as they are: they may be classes, counts or masks.
    """
    if not is_inexact(array):
        return array
    disturbed = np.array(array)
    flat = disturbed.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        chunk = _wide(flat[start : start + _CHUNK])
        noise = chunk * (1 + size * source.standard_normal(chunk.shape))
        flat[start : start + _CHUNK] = np.where(chunk == np.round(chunk), chunk, noise)
    return disturbed


def is_inexact(array: Any) -> bool:
    """Return whether an array consists of real or complex floating-point numbers."""
    return array.dtype.kind in "fc" or array.dtype.name in TOLERANCES


def _chunks(array: Any, like: Any) -> Iterator[Any]:
    if array is None:
        array = np.broadcast_to(np.zeros((), like.dtype), like.shape)
    for start in range(0, like.size, _CHUNK):
        yield _wide(array.reshape(-1)[start : start + _CHUNK])


def _wide(array: Any) -> Any:
    return array.astype("complex128" if array.dtype.kind == "c" else "float64")
