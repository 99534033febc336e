"""What every workload says about itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar


@dataclass(frozen=True)
class Goal:
    """What fastnet must reach beside one reference, and where FastEstimator stood.

    Attributes:
        limit: The highest ratio (or count) that meets the goal.
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

    # The peers that others are compared with: for each, a row in the report and perhaps a goal.
    references: ClassVar[tuple[str, ...]] = ("bare",)
    # Whether a step is timed, or returns a number that is itself the measurement.
    counts: ClassVar[bool] = False

    @property
    def goals(self) -> dict[str, Goal]:
        """The goals of this workload, by the reference that they are measured against."""
        return {}

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


def check_mapping(expected: Any, result: Any, extra_keys: bool) -> None:
    """Raise `AssertionError` unless both mappings have the same keys and close tensors.

    Args:
        expected: What the baseline returned.
        result: What the peer returned.
        extra_keys: Whether `result` may have keys that `expected` lacks.
    """
    import torch

    wanted, got = set(expected.keys()), set(result.keys())
    assert wanted <= got, f"keys {sorted(wanted - got)} are not in the result"
    assert extra_keys or wanted == got, f"keys {sorted(got - wanted)} should not be in the result"
    for key in wanted:
        torch.testing.assert_close(result[key], expected[key], msg=partial("{}: {}".format, key))
        assert not result[key].requires_grad, f"{key} still belongs to an autograd graph"
