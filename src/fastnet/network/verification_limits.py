"""Limits of what verification takes for rounding errors, for both frameworks.

A compiled program rounds otherwise than an uncompiled step, and a model may magnify rounding errors
by any factor: a ReLU whose input is nearly 0 turns, and the first step of Adam is the sign of a
gradient. A deviation up to the tolerance always passes. A larger one is judged beside those of
disturbed steps: uncompiled steps whose inputs have errors in their last bits.

`TORCH` and `TENSORFLOW` have the limits of both frameworks; comments say why some differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

EPSILONS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The distances from 1 to the next larger number, by dtype: a unit in the last place."""


@dataclass(frozen=True)
class Limits:
    """The limits of a framework.

    A precision is the dtype of the lowest precision in a step. A deviation and a change are
    Euclidean norms; a change is relative to the values before the step.

    Attributes:
        program_tolerances: The part of a change by which a compiled program may always be off, by
            the precision.
        disturbances: The sizes of the errors in disturbed steps, one after the other, in units in
            the last place. A small tensor may move little by chance, so there are several; larger
            errors, such as those of long sums, are used where smaller ones explain no deviation.
        low_disturbances: The same in half precision.
        max_ratio: A deviation may be this many times that of a disturbed step.
        max_ratio_of_few: The same where disturbed steps hardly move a tensor. Whether a rounding
            error turns a ReLU or a sign is chance.
        max_ratio_of_noise: The same for a change that consists of rounding errors, such as that of
            a mean of normalized values. Another order of summation has errors of another size, and
            second moments contain the squares of these.
        max_ratio_of_shares: The same for the share of elements that are other integers, or other
            infinite numbers or NaN.
        noise: A change consists of rounding errors if a disturbed step alters it by more than this
            part.
        norm_factor: The norm of a change may be off by this many tolerances.
        norm_tolerance: The norm of a change may be off by this part.
        max_norm_ratio: The norm of a change may be off by this many times that of a disturbed step.
        max_norm_ratio_of_distance: The norm may be off by this many times the deviation of a
            disturbed step. Where a few elements make up most of a change, rounding errors may alter
            both alike.
        few_elements: Fewer rounding errors than these may all happen to be 0.
    """

    program_tolerances: Mapping[str, float]
    disturbances: tuple[float, ...]
    low_disturbances: tuple[float, ...]
    max_ratio: float
    max_ratio_of_few: float
    max_ratio_of_noise: float
    max_ratio_of_shares: float
    noise: float
    norm_factor: float
    norm_tolerance: float
    max_norm_ratio: float
    max_norm_ratio_of_distance: float
    few_elements: int


_PROGRAM_TOLERANCES = {"float64": 1e-8, "float32": 1e-3, "float16": 2e-2, "bfloat16": 2e-2}
GRAPH_TOLERANCES = {"float64": 1e-10, "float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-3}
"""The part of a change by which a captured graph of PyTorch may always be off, by the precision.

It runs the kernels of the uncompiled step.
"""

_TORCH_DISTURBANCES = (2, 2, 2, 8, 8, 8, 32, 32, 32, 32, 32, 32)

TORCH = Limits(
    program_tolerances=_PROGRAM_TOLERANCES,
    disturbances=_TORCH_DISTURBANCES,
    low_disturbances=_TORCH_DISTURBANCES,
    max_ratio=3.0,
    max_ratio_of_few=8.0,
    max_ratio_of_noise=100.0,
    max_ratio_of_shares=2.0,
    noise=0.5,
    norm_factor=10.0,
    norm_tolerance=0.0,
    max_norm_ratio=3.0,
    max_norm_ratio_of_distance=3.0,
    few_elements=0,
)

TENSORFLOW = Limits(
    # In bfloat16, XLA alters the changes of small networks trained by SGD by 2 to 7 %.
    program_tolerances={**_PROGRAM_TOLERANCES, "bfloat16": 5e-2},
    # Each disturbed step copies all variables through numpy, so there are fewer. Their errors are
    # from the beginning those that the results of a few operations have.
    disturbances=(8, 8, 16, 16, 32, 32),
    low_disturbances=(1, 1, 2, 2, 4, 4),
    # The largest deviation of fewer disturbed steps is a lower estimate of what rounding does.
    max_ratio=10.0,
    max_ratio_of_few=10.0,
    max_ratio_of_noise=1000.0,
    max_ratio_of_shares=1.0,
    noise=0.5,
    # The norm of a change hardly depends on which signs a disturbance turns, so it makes up for the
    # larger ratios of deviations.
    norm_factor=0.0,
    norm_tolerance=0.25,
    max_norm_ratio=10.0,
    max_norm_ratio_of_distance=0.0,
    few_elements=4,
)
