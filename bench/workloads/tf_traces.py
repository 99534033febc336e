"""In TensorFlow: how often a step is traced while batches vary in size and epochs go by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bench.workloads.tf_mlp import TRAIN
from bench.workloads.tf_supervised import TFSupervised, model_of
from bench.workloads.tf_workload import TFWorkload
from bench.workloads.workload import Goal

if TYPE_CHECKING:
    import tensorflow as tf


class TraceCensus:
    """Counts how often Python code of a model runs, which is once a trace."""

    def __init__(self) -> None:
        self.seen = 0

    def layer(self) -> Any:
        """Return a layer that changes nothing and counts."""
        import keras

        census = self

        class Counted(keras.layers.Layer):  # type: ignore[misc]
            """A layer that returns its input."""

            def call(self, inputs: Any) -> Any:
                census.seen += 1
                return inputs

        return Counted()


@dataclass(frozen=True)
class TFTraces(TFWorkload):
    """Train and evaluate over batches of several sizes, epoch after epoch.

    Attributes:
        mode: Whose traces count. Both modes run, in turn, in every epoch.
        goal: How many there may be: one for the first size, and one for all others.
        step: The step, whose batches are made in other sizes.
        sizes: How many samples the batches of an epoch have.
        epochs: How many epochs there are.
    """

    mode: Literal["train", "eval"]
    goal: Goal
    step: TFSupervised = TRAIN
    sizes: tuple[int, ...] = (8, 8, 5, 3, 8, 7, 2)
    epochs: int = 10

    counts: ClassVar[bool] = True

    @property
    def goals(self) -> dict[str, Goal]:
        """The goal, as a count."""
        return dict.fromkeys(self.references, self.goal)

    def model(self, census: TraceCensus) -> Any:
        """Return the step's model with a layer that counts."""
        source, *rest = self.step.layers()
        return model_of([source, census.layer(), *rest])

    def batches(self) -> list[dict[str, tf.Tensor]]:
        """Return the batches of an epoch."""
        return [self.step.batch(size) for size in self.sizes]

    def count(self, census: TraceCensus, run_epoch: Callable[[str, int], Any]) -> int:
        """Run all epochs in both modes, and return how many traces the mode had.

        Args:
            census: What the model counts with.
            run_epoch: Runs the steps of an epoch, given the mode and the epoch.
        """
        traces = 0
        for epoch in range(1, self.epochs + 1):
            for mode in ("train", "eval"):
                before = census.seen
                run_epoch(mode, epoch)
                if mode == self.mode:
                    traces += census.seen - before
        return traces

    def check(self, expected: Any, result: Any, extra_keys: bool) -> None:
        """See that the steps ran at all."""
        assert result >= 1, f"{result} traces: no step ran"


WORKLOADS = (
    TFTraces("tf_traces_train", "Traces of train, 10 epochs", "train", Goal(2, 2)),
    TFTraces("tf_traces_eval", "Traces of eval, 10 epochs", "eval", Goal(2, 1)),
)
