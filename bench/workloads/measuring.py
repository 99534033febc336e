"""What it costs to measure an op: how much longer a chain's step is while it is profiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bench.workloads.identity_chain import IdentityChain
from bench.workloads.torch_workload import TorchWorkload
from bench.workloads.workload import Goal

if TYPE_CHECKING:
    import torch

# Nanoseconds an op.
LIMIT = Goal(100)


@dataclass(frozen=True)
class Measuring(TorchWorkload):
    """A chain's step while the time of each op is taken, beside the same step unmeasured.

    Attributes:
        chain: The chain.
    """

    chain: IdentityChain

    group: ClassVar[str | None] = "measuring"
    over_a_step: ClassVar[bool] = True
    only: ClassVar[frozenset[str] | None] = frozenset({"bare", "fastnet"})

    @property
    def goals(self) -> dict[str, Goal]:
        """The most that measuring may cost, in nanoseconds an op."""
        return dict.fromkeys(self.references, LIMIT)

    @property
    def ops_measured(self) -> int:
        """All ops of the chain."""
        return self.chain.length

    def batch(self) -> dict[str, torch.Tensor]:
        """Return a batch."""
        return self.chain.batch()


WORKLOADS = tuple(
    Measuring(f"measuring_{length}", f"Measure {length:,} ops", IdentityChain("", "", length))
    for length in (50, 1000)
)
