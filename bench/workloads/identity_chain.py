"""Chains of ops that do nothing, so that only what surrounds an op is left to pay for.

Op number i reads key `k{i-1}` and writes key `k{i}`; a step is given `k0` and must return its batch
with the last key on top. The op is a class of the user's with a `forward(self, data, state)` that
returns `data`, and the loop calls those very methods, bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bench.workloads.torch_workload import TorchWorkload
from bench.workloads.workload import Goal

if TYPE_CHECKING:
    import torch


class Identity:
    """An op as the hand-written loop uses it: it has the method that a `TensorOp` would have."""

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        """Return `data`."""
        return data


@dataclass(frozen=True)
class IdentityChain(TorchWorkload):
    """A step through `length` ops that do nothing.

    Attributes:
        length: How many ops.
        goal: The limit on the ratio, and FastEstimator's, where one is set.
    """

    length: int
    goal: Goal | None = None

    references: ClassVar[tuple[str, ...]] = ("bare", "bare_strict")

    @property
    def goals(self) -> dict[str, Goal]:
        """The same goal beside both loops."""
        return {} if self.goal is None else {"bare": self.goal, "bare_strict": self.goal}

    @property
    def keys(self) -> list[str]:
        """The keys along the chain: the first is the batch's, the last is wanted."""
        return [f"k{index}" for index in range(self.length + 1)]

    def batch(self) -> dict[str, torch.Tensor]:
        """Return a batch."""
        import torch

        return {"k0": torch.ones(8, 16)}


WORKLOADS = (
    IdentityChain("identity_1", "1 identity op", 1, Goal(2.0, 10.7)),
    IdentityChain("identity_50", "50 identity ops", 50, Goal(1.25, 18.5)),
    IdentityChain("identity_1000", "1,000 identity ops", 1000, Goal(1.25, 20.0)),
)
