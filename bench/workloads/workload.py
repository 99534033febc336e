"""What every workload says about itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

Framework = Literal["torch", "tf"]


@dataclass(frozen=True)
class Goal:
    """What fastnet must reach beside one reference, and where FastEstimator stood.

    Attributes:
        limit: The highest ratio (or count, or number of milliseconds, or of nanoseconds an op) that
            meets the goal.
        fastestimator: What FastEstimator 1.7.0 had when the goal was set, for comparison.
    """

    limit: float
    fastestimator: float | None = None


@dataclass(frozen=True)
class Workload(ABC):
    """Something to do once a step, small enough that the cost around it shows.

    Attributes:
        name: How the workload is called on a command line.
        title: How the report calls it.
    """

    name: str
    title: str

    # What the work is done in. Modules of workloads import none: a process loads what it measures.
    framework: ClassVar[Framework] = "torch"
    # The peer whose results are right.
    baseline: ClassVar[str] = "bare"
    # The peers that others are compared with: for each, a row in the report and perhaps a goal.
    references: ClassVar[tuple[str, ...]] = ("bare",)
    # Whether a step is timed, or returns a number that is itself the measurement.
    counts: ClassVar[bool] = False
    # Whether what counts is how much longer a step is than a plain one, in milliseconds, or shared
    # out in nanoseconds an op. Each program of such a workload has a plain step of its own.
    over_a_step: ClassVar[bool] = False
    # Whether what counts is how much longer a step is than the baseline's, in microseconds, once
    # the plain step that a program may have is taken off each.
    over_calls: ClassVar[bool] = False
    # Whether that is told by single steps of all programs in turn, since it is small beside a step.
    in_turns: ClassVar[bool] = False
    # Whether that is what finding a function costs, so that nanoseconds count.
    finds_functions: ClassVar[bool] = False
    # How many rounds there are at most, where a single one takes seconds.
    most_rounds: ClassVar[int | None] = None
    # The peers that are asked, or None for all.
    only: ClassVar[frozenset[str] | None] = None
    # Workloads of one group share a process, and a name on the command line.
    group: ClassVar[str | None] = None
    # What the workloads of the group have more and more of, if they show how a cost grows.
    grows: ClassVar[str | None] = None

    @property
    def goals(self) -> dict[str, Goal]:
        """The goals of this workload, by the reference that they are measured against."""
        return {}

    @property
    def size(self) -> int:
        """How much there is of what grows from workload to workload."""
        raise NotImplementedError(f"{self.name} does not grow")

    @property
    def ops_measured(self) -> int | None:
        """How many ops share what a step is longer than a plain one; None to tell it of a step."""
        return None

    @property
    def takes_long(self) -> bool:
        """Whether it takes so long to get ready that a quick look leaves it out."""
        return False

    def before_a_step(self) -> None:
        """Do what makes a step's work the same for all programs; it is not timed."""
        return

    @property
    def steps_to_check(self) -> int:
        """How many steps of two programs are compared."""
        return 1

    @abstractmethod
    def check(self, expected: Any, result: Any, extra_keys: bool) -> None:
        """Raise `AssertionError` if the result of a peer is not that of the baseline.

        Args:
            expected: What the baseline returned.
            result: What the peer returned.
            extra_keys: Whether the peer may return more keys than the baseline.
        """

    def check_weights(self, expected: Any, result: Any) -> None:
        """Raise `AssertionError` if the weights of two models differ.

        Args:
            expected: The model that the baseline trained.
            result: The model that the peer trained.
        """
        raise NotImplementedError(f"{self.name} trains no model")


def check_keys(expected: Any, result: Any, extra_keys: bool) -> set[str]:
    """Raise `AssertionError` unless both mappings have the same keys.

    Args:
        expected: What the baseline returned.
        result: What the peer returned.
        extra_keys: Whether `result` may have keys that `expected` lacks.

    Returns:
        The keys to compare.
    """
    wanted, got = set(expected.keys()), set(result.keys())
    assert wanted <= got, f"keys {sorted(wanted - got)} are not in the result"
    assert extra_keys or wanted == got, f"keys {sorted(got - wanted)} should not be in the result"
    return wanted
