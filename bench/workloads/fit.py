"""FastEstimator's Estimator on scikit-learn's digits, with its Network replaced or not.

A 64-32-10 network, batches of 32, ten epochs of 48 steps, with SGD or Adam.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from bench.workloads.workload import Framework, Goal, Workload

Figure = Literal["median_step", "shortest_step", "whole"]


@dataclass(frozen=True)
class DigitsFit(Workload):
    """One figure of a fit; the figures of a group are of the same fits.

    Attributes:
        optimizer: The name of the model's optimizer.
        figure: The median or the shortest `network.run_step`, or all of `Estimator.fit`.
    """

    optimizer: str
    figure: Figure

    baseline: ClassVar[str] = "fastestimator"
    references: ClassVar[tuple[str, ...]] = ("fastestimator",)
    only: ClassVar[frozenset[str] | None] = frozenset({"fastestimator", "fastnet"})
    group: ClassVar[str | None] = "fit_digits"

    def check(self, expected: Any, result: Any, extra_keys: bool = False) -> None:
        """Compare two fits."""
        from bench import fits

        fits.check(expected, result)


@dataclass(frozen=True)
class AdamDigitsFit(DigitsFit):
    """The same with Adam."""

    group: ClassVar[str | None] = "fit_digits_adam"


@dataclass(frozen=True)
class TFDigitsFit(DigitsFit):
    """The same in TensorFlow."""

    framework: ClassVar[Framework] = "tf"
    group: ClassVar[str | None] = "tf_fit_digits"


def _figures(kind: type[DigitsFit], suffix: str, optimizer: str, limit: float) -> list[DigitsFit]:
    name, step = str(kind.group), f"Step in a fit on digits{suffix}"
    return [
        kind(f"{name}_step", step, optimizer, "median_step", goal=Goal(limit)),
        kind(f"{name}_shortest", f"{step}, shortest", optimizer, "shortest_step"),
        kind(f"{name}_whole", f"All of a fit on digits{suffix}", optimizer, "whole"),
    ]


WORKLOADS = (
    *_figures(DigitsFit, "", "sgd", 1 / 2),
    *_figures(AdamDigitsFit, ", Adam", "adam", 1 / 2),
)
TF_WORKLOADS = (*_figures(TFDigitsFit, "", "sgd", 1 / 3),)
