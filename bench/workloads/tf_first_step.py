"""In TensorFlow: what a program waits for its first step, which traces the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bench.workloads.tf_supervised import TFSupervised
from bench.workloads.tf_workload import TFWorkload
from bench.workloads.workload import Goal

_LENGTH, _WIDTH = 12, 32


def transformer() -> list[Any]:
    """Return the layers of a small transformer, some of them subclassed: (4, 12, 32) -> (4, 4)."""
    import keras

    layers = keras.layers

    class Block(layers.Layer):  # type: ignore[misc]
        """Attention and a network of two layers, each with what goes around it."""

        def __init__(self) -> None:
            super().__init__()
            self.attend = layers.MultiHeadAttention(4, _WIDTH // 4)
            self.inner = layers.Dense(2 * _WIDTH, activation="gelu")
            self.outer = layers.Dense(_WIDTH)
            self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]

        def build(self, shape: Any) -> None:
            """Make the weights, in every version of Keras when the layer is first called."""
            super().build(shape)

        def call(self, inputs: Any) -> Any:
            """Run the block."""
            inputs = self.norms[0](inputs + self.attend(inputs, inputs))
            return self.norms[1](inputs + self.outer(self.inner(inputs)))

    blocks = [Block() for _ in range(3)]
    head = [layers.GlobalAveragePooling1D(), layers.Dense(4)]
    return [keras.Input((_LENGTH, _WIDTH)), *blocks, *head]


@dataclass(frozen=True)
class TFFirstStep(TFWorkload):
    """Open a network that never ran and run its first step, and leave it.

    Making the model and the network is outside the clock.

    Attributes:
        step: The step.
        goal: The limit on the ratio to FastEstimator.
    """

    step: TFSupervised
    goal: Goal

    references: ClassVar[tuple[str, ...]] = ("tf_concrete", "fastestimator")
    most_rounds: ClassVar[int | None] = 7

    @property
    def goals(self) -> dict[str, Goal]:
        """The goal beside FastEstimator."""
        return {"fastestimator": self.goal}


def _step(training: bool) -> TFSupervised:
    return TFSupervised("", "", training, transformer, (4, _LENGTH, _WIDTH), 4)


WORKLOADS = (
    TFFirstStep("tf_first_train", "First train step, transformer", _step(True), Goal(1.0, 1.0)),
    TFFirstStep("tf_first_infer", "First infer step, transformer", _step(False), Goal(1.0, 1.0)),
)
