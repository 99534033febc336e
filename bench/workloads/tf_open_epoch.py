"""In TensorFlow: what the first step of an epoch costs more than one in the middle of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bench.workloads.tf_mlp import TRAIN
from bench.workloads.tf_supervised import TFSupervised
from bench.workloads.tf_workload import TFWorkload
from bench.workloads.workload import Goal


@dataclass(frozen=True)
class TFOpenEpoch(TFWorkload):
    """Open a network for the epoch after the last one, run a train step in it, and leave it.

    The ops are the same in every epoch, so there is nothing to trace. A second network of the same
    kind, which stays open, runs the plain steps whose time is taken off.

    Attributes:
        step: The step.
        goal: How many milliseconds it may take more than a plain step.
    """

    step: TFSupervised
    goal: Goal

    over_a_step: ClassVar[bool] = True

    @property
    def goals(self) -> dict[str, Goal]:
        """The goal, in milliseconds."""
        return dict.fromkeys(self.references, self.goal)

    @property
    def steps_to_check(self) -> int:
        """As many as of the step itself."""
        return self.step.steps_to_check


WORKLOADS = (
    TFOpenEpoch("tf_open_epoch", "Open the next epoch, first step", TRAIN, Goal(1.0, 12.0)),
)
