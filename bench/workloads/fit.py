"""FastEstimator's Estimator on scikit-learn's digits, its Network swapped or not.

A 64-32-10 network, batches of 32, ten epochs of 48 steps. The optimizer is plain SGD, as elsewhere
here; with Adam in PyTorch the optimizer alone takes as long as the rest of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bench.workloads.workload import Framework, Goal, Workload

if TYPE_CHECKING:
    from bench.fits import Fit


@dataclass(frozen=True)
class DigitsFit(Workload):
    """One figure of a fit; those of a framework are all of the same fits.

    Attributes:
        optimizer: The name of the model's optimizer.
        figure: The median or the shortest `Network.run_step`, or all of `Estimator.fit`.
        limit: What part of FastEstimator's own time it may take, or None for no goal.
    """

    optimizer: str
    figure: Literal["median_step", "shortest_step", "whole"]
    limit: float | None = None

    baseline: ClassVar[str] = "fastestimator"
    references: ClassVar[tuple[str, ...]] = ("fastestimator",)
    only: ClassVar[frozenset[str] | None] = frozenset({"fastestimator", "fastnet"})
    group: ClassVar[str | None] = "fit_digits"

    @property
    def goals(self) -> dict[str, Goal]:
        """The goal beside FastEstimator's own step."""
        return {} if self.limit is None else {"fastestimator": Goal(self.limit)}

    def of(self, fit: Fit) -> float:
        """Return the figure of a fit, in nanoseconds."""
        value: float = getattr(fit, self.figure)
        return value

    def check(self, expected: Any, result: Any, extra_keys: bool) -> None:
        """Compare what two fits have come to."""
        from bench import fits

        fits.check(expected, result)


@dataclass(frozen=True)
class TFDigitsFit(DigitsFit):
    """The same in TensorFlow."""

    framework: ClassVar[Framework] = "tf"
    group: ClassVar[str | None] = "tf_fit_digits"


@dataclass(frozen=True)
class AdamDigitsFit(DigitsFit):
    """The same with another optimizer, in processes of its own."""

    group: ClassVar[str | None] = "fit_digits_adam"


_STEP = "Step in a fit on digits"
_WHOLE = "All of a fit on digits"

WORKLOADS = (
    DigitsFit("fit_digits_step", _STEP, "sgd", "median_step", 1 / 2),
    DigitsFit("fit_digits_shortest", f"{_STEP}, shortest", "sgd", "shortest_step"),
    DigitsFit("fit_digits_whole", _WHOLE, "sgd", "whole"),
    AdamDigitsFit("fit_digits_adam_step", f"{_STEP}, Adam", "adam", "median_step", 1 / 2),
    AdamDigitsFit("fit_digits_adam_shortest", f"{_STEP}, Adam, shortest", "adam", "shortest_step"),
    AdamDigitsFit("fit_digits_adam_whole", f"{_WHOLE}, Adam", "adam", "whole"),
)

TF_WORKLOADS = (
    TFDigitsFit("tf_fit_digits_step", _STEP, "sgd", "median_step", 1 / 3),
    TFDigitsFit("tf_fit_digits_shortest", f"{_STEP}, shortest", "sgd", "shortest_step"),
    TFDigitsFit("tf_fit_digits_whole", _WHOLE, "sgd", "whole"),
)
