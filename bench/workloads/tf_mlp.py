"""In TensorFlow: a network so small that its step is mostly overhead, 16-32-4, batch 8."""

from __future__ import annotations

from typing import Any

from bench.workloads.tf_supervised import TFCompiled, TFDivided, TFSupervised
from bench.workloads.workload import Goal


def layers() -> list[Any]:
    """Return the layers: (8, 16) -> (8, 4)."""
    import keras

    return [
        keras.Input((16,)),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(4),
    ]


def deep_layers() -> list[Any]:
    """Return the layers of ten of 32: (16, 16) -> (16, 4)."""
    import keras

    inner = [keras.layers.Dense(32, activation="relu") for _ in range(10)]
    return [keras.Input((16,)), *inner, keras.layers.Dense(4)]


TRAIN = TFSupervised("tf_mlp_train", "MLP train step", True, layers, (8, 16), 4, Goal(1.05, 3.74))
INFER = TFSupervised("tf_mlp_infer", "MLP infer step", False, layers, (8, 16), 4, Goal(1.05, 4.09))
TRAIN_COMPILED = TFCompiled(
    "tf_mlp_train_compiled", "MLP train step, compiled", True, layers, (8, 16), 4, Goal(0.25)
)
INFER_COMPILED = TFCompiled(
    "tf_mlp_infer_compiled", "MLP infer step, compiled", False, layers, (8, 16), 4, Goal(0.25)
)
TRAIN_DIVIDED = TFDivided(
    "tf_mlp_train_divided", "10 layers and a sort, train step", True, deep_layers, (16, 16), 4
)

WORKLOADS = (TRAIN, INFER, TRAIN_COMPILED, INFER_COMPILED, TRAIN_DIVIDED)
