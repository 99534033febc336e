"""What one op adds to a step, beyond the calls of PyTorch that it makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bench.workloads.ops import BATCH, CASES, CLASSES, OpCase
from bench.workloads.torch_workload import TorchWorkload
from bench.workloads.workload import Goal

if TYPE_CHECKING:
    import torch
    from torch import nn

LEARNING_RATE = 0.01
# Microseconds.
LIMIT = Goal(2.0)


@dataclass(frozen=True)
class OpCost(TorchWorkload):
    """A step of a network of one op, beside its calls written by hand and a network of nothing.

    Attributes:
        case: The op and its batch.
    """

    case: OpCase

    group: ClassVar[str | None] = "op_cost"
    over_calls: ClassVar[bool] = True
    in_turns: ClassVar[bool] = True
    only: ClassVar[frozenset[str] | None] = frozenset({"bare", "fastnet", "fastestimator"})

    @property
    def goals(self) -> dict[str, Goal]:
        """The most that an op may add, in microseconds."""
        return dict.fromkeys(self.references, LIMIT)

    @property
    def steps_to_check(self) -> int:
        """Three where a model is trained, to see that its weights move alike."""
        return 3 if self.case.updates else 1

    def seed(self) -> None:
        """Set every generator of random numbers."""
        import numpy as np
        import torch

        torch.manual_seed(0)
        np.random.seed(0)

    def before_a_step(self) -> None:
        """Let all programs draw the same numbers, where these decide how much there is to do."""
        if self.case.draws_work:
            self.seed()

    def model(self) -> nn.Module:
        """Return the model of ops that have one, with the same weights every time."""
        import torch

        torch.manual_seed(0)
        return torch.nn.Linear(16, CLASSES)

    def batch(self) -> dict[str, torch.Tensor]:
        """Return a batch, the same every time."""
        import torch

        return {key: torch.as_tensor(value) for key, value in self.case.arrays(False).items()}


WORKLOADS = tuple(OpCost(f"op_{case.name}", case.title, case) for case in CASES)

__all__ = ["BATCH", "LEARNING_RATE", "LIMIT", "WORKLOADS", "OpCost"]
