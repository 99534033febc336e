"""Steps of classifiers in TensorFlow, and their first steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from bench.workloads.workload import Framework, Goal, ModelStep, Workload

LEARNING_RATE = 0.01
_LENGTH, _WIDTH = 12, 32


def model_of(layers: list[Any]) -> Any:
    """Return a Keras model, with the same weights in every version of Keras."""
    import keras
    import numpy as np

    model = keras.Sequential(layers)
    generator = np.random.default_rng(0)
    model.set_weights(
        [generator.normal(0, 0.2, weight.shape).astype("float32") for weight in model.weights]
    )
    return model


def sgd() -> Any:
    """Return the optimizer that fastnet and FastEstimator know as "sgd"."""
    import keras

    if int(keras.__version__.partition(".")[0]) >= 3:
        return keras.optimizers.SGD(LEARNING_RATE)
    return keras.optimizers.legacy.SGD(LEARNING_RATE)


@dataclass(frozen=True)
class TFWorkload(Workload):
    """A workload in TensorFlow."""

    framework: ClassVar[Framework] = "tf"
    baseline: ClassVar[str] = "tf_concrete"
    references: ClassVar[tuple[str, ...]] = ("tf_concrete",)


@dataclass(frozen=True)
class TFSupervised(ModelStep, TFWorkload):
    """A train step or an infer step of one Keras model on one batch.

    A train step returns the batch with `pred` (logits) and `loss` added; an infer step returns it
    with `pred`.

    Attributes:
        layers: Makes the model's layers, the input first.
        shape: The shape of the input, batch first.
    """

    layers: Callable[[], list[Any]]
    shape: tuple[int, ...]

    references: ClassVar[tuple[str, ...]] = ("tf_concrete", "tf_concrete_any")
    jit_compile: ClassVar[bool] = False

    def takes_part(self, peer: str) -> bool:
        """Return whether a peer is asked; a function with `jit_compile` is one of `TFCompiled`."""
        return super().takes_part(peer) and (self.jit_compile or peer != "tf_function_jit")

    def model(self) -> Any:
        """Return the model."""
        return model_of(self.layers())

    def batch(self, size: int | None = None) -> dict[str, Any]:
        """Return a batch, always the same.

        Args:
            size: The number of samples, or None for that of `shape`.
        """
        import numpy as np
        import tensorflow as tf

        size = size or self.shape[0]
        generator = np.random.default_rng(1)
        x = generator.standard_normal((size, *self.shape[1:]), np.float32)
        y = generator.integers(0, 4, size, np.int32)
        return {"x": tf.constant(x), "y": tf.constant(y)}


@dataclass(frozen=True)
class TFCompiled(TFSupervised):
    """A step that XLA compiles; the concrete function beside it stays a graph."""

    references: ClassVar[tuple[str, ...]] = ("tf_concrete", "tf_function_jit")
    only: ClassVar[frozenset[str] | None] = frozenset(
        {"tf_concrete", "fastnet", "tf_function_jit", "keras_on_batch"}
    )
    jit_compile: ClassVar[bool] = True

    @property
    def goals(self) -> dict[str, Goal]:
        """The goals, by reference."""
        return {"tf_concrete": Goal(0.25), "tf_function_jit": Goal(0.5)}


@dataclass(frozen=True)
class TFForeignBatch(TFSupervised):
    """A step on a batch of torch tensors, as FastEstimator's loaders return them."""

    references: ClassVar[tuple[str, ...]] = ("tf_concrete", "fastestimator")
    only: ClassVar[frozenset[str] | None] = frozenset({"tf_concrete", "fastnet", "fastestimator"})

    def batch(self, size: int | None = None) -> dict[str, Any]:
        """Return the batch as torch tensors."""
        import torch

        made = super().batch(size)
        return {key: torch.from_numpy(value.numpy().copy()) for key, value in made.items()}


@dataclass(frozen=True)
class TFFirstStep(TFWorkload):
    """Enter a new network, run its first step, which traces it, and leave it.

    Attributes:
        step: The step.
    """

    step: TFSupervised

    references: ClassVar[tuple[str, ...]] = ("tf_concrete", "fastestimator")
    most_rounds: ClassVar[int | None] = 7
    goals: ClassVar[dict[str, Goal]] = {"fastestimator": Goal(1.0, 1.0)}  # type: ignore[assignment]


@dataclass(frozen=True)
class TFOpenEpoch(TFWorkload):
    """Enter a network for the next epoch, run a train step, and leave it.

    The ops do not change, so nothing is traced. A second network stays open for the plain steps.

    Attributes:
        step: The step.
    """

    step: TFSupervised

    unit: ClassVar = "ms"
    steps_to_check: ClassVar[int] = 3  # type: ignore[assignment]


def mlp() -> list[Any]:
    """Return the layers of a network whose step is mostly overhead: (8, 16) -> (8, 4)."""
    from keras import Input, layers

    return [Input((16,)), layers.Dense(32, activation="relu"), layers.Dense(4)]


def transformer() -> list[Any]:
    """Return the layers of a small transformer, some of them subclassed: (4, 12, 32) -> (4, 4)."""
    from keras import Input, layers

    class Block(layers.Layer):  # type: ignore[misc]
        """Attention and an MLP, each with a residual and a norm."""

        def __init__(self) -> None:
            super().__init__()
            self.attend = layers.MultiHeadAttention(4, _WIDTH // 4)
            self.inner = layers.Dense(2 * _WIDTH, activation="gelu")
            self.outer = layers.Dense(_WIDTH)
            self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]

        def build(self, shape: Any) -> None:
            """Leave the weights to the first call, in every version of Keras."""
            super().build(shape)

        def call(self, inputs: Any) -> Any:
            """Run the block."""
            inputs = self.norms[0](inputs + self.attend(inputs, inputs))
            return self.norms[1](inputs + self.outer(self.inner(inputs)))

    blocks = [Block() for _ in range(3)]
    head = [layers.GlobalAveragePooling1D(), layers.Dense(4)]
    return [Input((_LENGTH, _WIDTH)), *blocks, *head]


def _first(training: bool) -> TFSupervised:
    return TFSupervised("", "", training, transformer, (4, _LENGTH, _WIDTH))


_MLP = (mlp, (8, 16))
TRAIN = TFSupervised("tf_mlp_train", "MLP train step", True, *_MLP, goal=Goal(1.05, 3.74))

WORKLOADS = (
    TRAIN,
    TFSupervised("tf_mlp_infer", "MLP infer step", False, *_MLP, goal=Goal(1.05, 4.09)),
    TFCompiled("tf_mlp_train_compiled", "MLP train step, compiled", True, *_MLP),
    TFCompiled("tf_mlp_infer_compiled", "MLP infer step, compiled", False, *_MLP),
    TFForeignBatch("tf_mlp_foreign", "MLP train step, torch batch", True, *_MLP, goal=Goal(1.05)),
    TFFirstStep("tf_first_train", "First train step, transformer", _first(True)),
    TFFirstStep("tf_first_infer", "First infer step, transformer", _first(False)),
    TFOpenEpoch("tf_open_epoch", "Open the next epoch, first step", TRAIN, goal=Goal(1.0, 12.0)),
)
