"""The base of all workloads: its goals, its peers, and how results are compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

Framework = Literal["torch", "tf"]
Unit = Literal["ratio", "count", "ms", "ns an op", "us"]


@dataclass(frozen=True)
class Goal:
    """The bar for fastnet beside one reference.

    Attributes:
        limit: The highest value that meets the goal, in the unit of the workload.
        fastestimator: The value of FastEstimator 1.7.0 when the goal was set.
    """

    limit: float
    fastestimator: float | None = None


@dataclass(frozen=True)
class Workload:
    """The work of one step, small enough that the overhead around it shows.

    No module of workloads imports a framework: a process loads only the one it measures.

    Attributes:
        name: Its name on the command line and in saved reports.
        title: Its name in tables.
        goal: The bar beside each reference.
        size: The number of ops, of slices, or of what grows, where a workload has one.
    """

    name: str
    title: str
    goal: Goal | None = field(default=None, kw_only=True)
    size: int = field(default=0, kw_only=True)

    framework: ClassVar[Framework] = "torch"
    # "ratio": time beside each reference. "count": the number a step returns. "ms" and "ns an op":
    # time beyond the program's plain step. "us": time beyond the step of the baseline, after the
    # plain step, if there is one, is subtracted from both.
    unit: ClassVar[Unit] = "ratio"
    # The peer whose results are correct, and the peers that others are compared with.
    baseline: ClassVar[str] = "bare"
    references: ClassVar[tuple[str, ...]] = ("bare",)
    # The peers that take part, or None for all of the framework.
    only: ClassVar[frozenset[str] | None] = None
    # Workloads of a group are measured in one process and share a name on the command line.
    group: ClassVar[str | None] = None
    # The quantity that differs between the workloads of the group, if they measure growth.
    grows: ClassVar[str | None] = None
    # The most rounds, for workloads with a round of seconds.
    most_rounds: ClassVar[int | None] = None
    # A package that it needs beside the framework.
    package: ClassVar[str | None] = None
    # Relative and absolute, as `torch.testing.assert_close` has them for float32.
    tolerance: ClassVar[tuple[float, float]] = (1.3e-6, 1e-5)

    @property
    def is_missing_package(self) -> bool:
        """Whether the package that it needs is not installed."""
        return self.package is not None and find_spec(self.package) is None

    @property
    def goals(self) -> dict[str, Goal]:
        """The goals, by reference."""
        return {} if self.goal is None else dict.fromkeys(self.references, self.goal)

    @property
    def takes_long(self) -> bool:
        """Whether compilers take too long for a quick run."""
        return False

    @property
    def steps_to_check(self) -> int:
        """The number of steps whose results are compared with the baseline's."""
        return 1

    def takes_part(self, peer: str) -> bool:
        """Return whether a peer is asked for a program."""
        return self.only is None or peer in self.only

    def check(self, expected: Any, result: Any, extra_keys: bool = False) -> None:
        """Raise `AssertionError` unless a peer's result is that of the baseline.

        Args:
            expected: The result of the baseline.
            result: The result of the peer.
            extra_keys: Whether the peer may return more keys than the baseline.
        """
        wanted, got = set(expected.keys()), set(result.keys())
        assert wanted <= got, f"keys {sorted(wanted - got)} are not in the result"
        assert extra_keys or wanted == got, f"unexpected keys in the result: {sorted(got - wanted)}"
        for key in wanted:
            if self.framework == "torch" and hasattr(expected[key], "dtype"):
                assert result[key].dtype == expected[key].dtype, f"{key} is {result[key].dtype}"
            self.assert_close(expected[key], result[key], key)

    def check_weights(self, expected: Any, result: Any) -> None:
        """Raise `AssertionError` unless two models have the same weights."""
        for index, (other, mine) in enumerate(zip(*map(weights, (expected, result)), strict=True)):
            self.assert_close(other, mine, f"weight {index}")

    def assert_close(self, expected: Any, result: Any, name: str) -> None:
        """Compare two tensors; one that still requires a gradient has no array and fails."""
        import numpy as np

        relative, absolute = self.tolerance
        arrays = np.asarray(result), np.asarray(expected)
        np.testing.assert_allclose(*arrays, relative, absolute, err_msg=name)


def weights(model: Any) -> list[Any]:
    """Return the weights of a torch module or a Keras model as arrays."""
    if hasattr(model, "get_weights"):
        return list(model.get_weights())
    return [parameter.detach().numpy() for parameter in model.parameters()]


@dataclass(frozen=True)
class ModelStep(Workload):
    """A train step or an infer step of a model.

    Attributes:
        training: Whether the step trains.
    """

    training: bool

    @property
    def steps_to_check(self) -> int:
        """Three steps of training, after which the weights are compared."""
        return 3 if self.training else 1

    @property
    def mode(self) -> str:
        """The mode of the network."""
        return "train" if self.training else "infer"

    @property
    def wanted(self) -> set[str]:
        """The keys that a step adds to its batch."""
        return {"pred", "loss"} if self.training else {"pred"}
