"""In TensorFlow: a classifier's step, to predict, or to train with cross entropy and plain SGD."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bench.workloads.tf_workload import TFWorkload
from bench.workloads.workload import Goal

if TYPE_CHECKING:
    import tensorflow as tf

LEARNING_RATE = 0.01


@dataclass(frozen=True)
class TFSupervised(TFWorkload):
    """A train step or an infer step of one Keras model on one batch.

    A train step returns the batch with `pred` (logits) and `loss` on top; an infer step returns it
    with `pred`.

    Attributes:
        training: Whether the step trains.
        layers: Makes the model's layers, the input first.
        shape: The shape of the input, batch first.
        classes: How many classes there are.
        goal: The limit on the ratio to the hand-written concrete function, where one is set.
    """

    training: bool
    layers: Callable[[], list[Any]]
    shape: tuple[int, ...]
    classes: int
    goal: Goal | None = None

    references: ClassVar[tuple[str, ...]] = ("tf_concrete", "tf_concrete_any")

    @property
    def goals(self) -> dict[str, Goal]:
        """The same goal beside both concrete functions."""
        return {} if self.goal is None else dict.fromkeys(self.references, self.goal)

    @property
    def steps_to_check(self) -> int:
        """Three steps of training, to see that weights move alike; one of inference."""
        return 3 if self.training else 1

    @property
    def mode(self) -> str:
        """The mode in which a network runs this step."""
        return "train" if self.training else "infer"

    @property
    def wanted(self) -> set[str]:
        """The keys that a step adds to its batch."""
        return {"pred", "loss"} if self.training else {"pred"}

    def model(self) -> Any:
        """Return the model, with the same weights every time, in every version of Keras."""
        return model_of(self.layers())

    def optimizer(self) -> Any:
        """Return the optimizer: of the kind that fastnet and FastEstimator know as "sgd"."""
        import keras

        if int(keras.__version__.partition(".")[0]) >= 3:
            return keras.optimizers.SGD(LEARNING_RATE)
        return keras.optimizers.legacy.SGD(LEARNING_RATE)

    def batch(self, size: int | None = None) -> dict[str, tf.Tensor]:
        """Return a batch, the same every time.

        Args:
            size: How many samples it has, or None for as many as `shape` says.
        """
        import numpy as np
        import tensorflow as tf

        size = size or self.shape[0]
        generator = np.random.default_rng(1)
        x = generator.standard_normal((size, *self.shape[1:]), np.float32)
        y = generator.integers(0, self.classes, size, np.int32)
        return {"x": tf.constant(x), "y": tf.constant(y)}


@dataclass(frozen=True)
class TFCompiled(TFSupervised):
    """The same step where XLA compiles it; what it is compared with stays a graph."""

    only: ClassVar[frozenset[str] | None] = frozenset(
        {"tf_concrete", "fastnet", "tf_function", "keras_on_batch"}
    )
    references: ClassVar[tuple[str, ...]] = ("tf_concrete",)


@dataclass(frozen=True)
class TFDivided(TFCompiled):
    """The same step with its features sorted first, for which XLA is not known to do the same."""

    only: ClassVar[frozenset[str] | None] = frozenset({"tf_concrete", "fastnet"})


def model_of(layers: list[Any]) -> Any:
    """Return a Keras model of `layers`, with the same weights every time.

    Args:
        layers: The layers, the input first.
    """
    import keras
    import numpy as np

    model = keras.Sequential(layers)
    generator = np.random.default_rng(0)
    # Initializers draw other numbers in other versions of Keras.
    model.set_weights(
        [generator.normal(0, 0.2, weight.shape).astype("float32") for weight in model.weights]
    )
    return model
