"""Chains of ops that compute nothing, so that only the overhead around an op is measured.

Op number i reads the key `k{i-1}` and writes `k{i}`. A step is given `k0` and returns its batch
with the last key added. The hand-written loop calls the same bound `forward(data, state)` methods.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from bench.workloads.workload import Framework, Goal, Workload


class Identity:
    """An op as the hand-written loop uses it, with the method of a `TensorOp`."""

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        """Return `data`."""
        return data


@dataclass(frozen=True)
class Chain(Workload):
    """A step through `size` ops."""

    @property
    def keys(self) -> list[str]:
        """The keys along the chain: the first is the batch's, the last is requested."""
        return [f"k{index}" for index in range(self.size + 1)]

    def batch(self) -> dict[str, Any]:
        """Return a batch."""
        import torch

        return {"k0": torch.ones(8, 16)}


@dataclass(frozen=True)
class IdentityChain(Chain):
    """A chain of identity ops."""

    references: ClassVar[tuple[str, ...]] = ("bare", "bare_strict")


@dataclass(frozen=True)
class GrowingChain(IdentityChain):
    """Chains of increasing length."""

    group: ClassVar[str | None] = "grow_ops"
    grows: ClassVar[str | None] = "ops"
    only: ClassVar[frozenset[str] | None] = frozenset(
        {"bare", "bare_strict", "fastnet", "fastestimator", "tensordict"}
    )


@dataclass(frozen=True)
class TFGrowingChain(Chain):
    """Chains of increasing length in a TensorFlow graph; each op adds one."""

    framework: ClassVar[Framework] = "tf"
    baseline: ClassVar[str] = "tf_concrete"
    references: ClassVar[tuple[str, ...]] = ("tf_concrete",)
    group: ClassVar[str | None] = "tf_grow_ops"
    grows: ClassVar[str | None] = "ops"
    only: ClassVar[frozenset[str] | None] = frozenset(
        {"tf_concrete", "fastnet", "fastestimator", "tf_function"}
    )

    def batch(self) -> dict[str, Any]:
        """Return a batch."""
        import tensorflow as tf

        return {"k0": tf.ones((8, 16))}


@dataclass(frozen=True)
class Measuring(Chain):
    """A chain while `fastnet.profile` measures it, beside the same step without a profile."""

    unit: ClassVar = "ns an op"
    group: ClassVar[str | None] = "measuring"
    only: ClassVar[frozenset[str] | None] = frozenset({"bare", "fastnet"})


@dataclass(frozen=True)
class OpenEpoch(Chain):
    """Enter and leave a network, which happens once for each epoch and mode.

    A hand-written loop has nothing to enter, so the reference is FastEstimator.

    Attributes:
        which: "first" enters a network of new ops, "again" the same epoch as before, "next" the
            epoch after the last one.
    """

    which: Literal["first", "again", "next"]

    references: ClassVar[tuple[str, ...]] = ("fastestimator",)

    def check(self, expected: Any, result: Any, extra_keys: bool = False) -> None:
        """Check a step in the network that was entered; there is no baseline."""
        batch = self.batch()
        super().check({**batch, self.keys[-1]: batch["k0"]}, result, extra_keys)


class Census:
    """Makes tensors and counts, whenever it makes one, how many are alive."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Any]] = []
        self.most = 0

    def grow(self, data: Any) -> Any:
        """Return a new tensor."""
        new = data + 1
        self._made.append(weakref.ref(new))
        self.most = max(self.most, sum(reference() is not None for reference in self._made))
        return new


@dataclass(frozen=True)
class LiveTensors(Chain):
    """The most intermediate tensors alive at once in an infer step; two is the least possible."""

    unit: ClassVar = "count"

    def check(self, expected: Any, result: Any, extra_keys: bool = False) -> None:
        """Check that the chain ran."""
        assert result >= 2, f"{result} tensors alive at once: the chain did not run"


WORKLOADS = (
    IdentityChain("identity_1", "1 identity op", size=1, goal=Goal(2.0, 10.7)),
    IdentityChain("identity_50", "50 identity ops", size=50, goal=Goal(1.25, 18.5)),
    IdentityChain("identity_1000", "1,000 identity ops", size=1000, goal=Goal(1.25, 20.0)),
    OpenEpoch("open_first", "Open 1,000 ops, first", "first", size=1000, goal=Goal(0.3, 1.0)),
    OpenEpoch("open_again", "Open 1,000 ops, again", "again", size=1000, goal=Goal(0.2, 1.0)),
    OpenEpoch("open_next", "Open 1,000 ops, next epoch", "next", size=1000),
    LiveTensors("live_40", "Most live tensors, chain of 40", size=40, goal=Goal(2, 40)),
    *(
        Measuring(f"measuring_{length}", f"Measure {length:,} ops", size=length, goal=Goal(100))
        for length in (50, 1000)
    ),
)
GROWING = tuple(
    GrowingChain(f"ops_{count}", f"{count:,} ops", size=count)
    for count in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
)
TF_GROWING = tuple(
    TFGrowingChain(f"tf_ops_{count}", f"{count:,} ops", size=count) for count in (1, 3, 10, 30, 100)
)
