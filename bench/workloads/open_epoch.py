"""Opening and leaving a network of 1,000 ops, which happens once for each epoch and mode.

A hand-written loop has nothing to open, so times are compared with FastEstimator's, in its process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bench.workloads.torch_workload import TorchWorkload, check_mapping
from bench.workloads.workload import Goal

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class OpenEpoch(TorchWorkload):
    """Open a network of `length` identity ops for an epoch, the last key wanted, and leave it.

    Attributes:
        which: `"first"` opens a network that was never open, made of new ops; `"again"` opens the
            same epoch that was open before; `"next"` opens each time the epoch after the last one.
        goal: The limit on the ratio to FastEstimator, where one is set.
        length: How many ops.
    """

    which: Literal["first", "again", "next"]
    goal: Goal | None = None
    length: int = 1000

    references: ClassVar[tuple[str, ...]] = ("fastestimator",)

    @property
    def goals(self) -> dict[str, Goal]:
        """The goal beside FastEstimator."""
        return {} if self.goal is None else {"fastestimator": self.goal}

    @property
    def keys(self) -> list[str]:
        """The keys along the chain: the first is the batch's, the last is wanted."""
        return [f"k{index}" for index in range(self.length + 1)]

    def batch(self) -> dict[str, torch.Tensor]:
        """Return a batch, to see that the network that was opened runs."""
        import torch

        return {"k0": torch.ones(8, 16)}

    def check(self, expected: Any, result: Any, extra_keys: bool) -> None:
        """Check what a step in the opened network returns; there is no baseline's to compare."""
        batch = self.batch()
        check_mapping({**batch, self.keys[-1]: batch["k0"]}, result, extra_keys)


WORKLOADS = (
    OpenEpoch("open_first", "Open 1,000 ops, first", "first", Goal(0.3, 1.0)),
    OpenEpoch("open_again", "Open 1,000 ops, again", "again", Goal(0.2, 1.0)),
    OpenEpoch("open_next", "Open 1,000 ops, next epoch", "next"),
)
