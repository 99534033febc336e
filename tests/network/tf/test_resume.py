"""Resumed runs in TensorFlow, compared with runs that were not interrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet.op.tensorop import LambdaOp, TensorOp
from tests.network.keras_models import keras, tf
from tests.network.resuming import Resumable

pytestmark = pytest.mark.tf

layers = keras.layers
optimizers = keras.optimizers


class Program(Resumable):
    def make_model(self) -> Any:
        return keras.Sequential([layers.Input((4,)), layers.Dense(8, "tanh"), layers.Dense(1)])

    def make_inputs(self, step: int) -> Any:
        return np.random.default_rng(step).normal(size=(6, 4)).astype("float32")


def resumed_equals(path: Path, make: Callable[[], Program], split: int = 4, end: int = 9) -> bool:
    """Return whether a run that another program resumes ends with the weights of one run."""
    program = make()
    program.train(range(split))
    fastnet.save_checkpoint(path, program.network)
    program.train(range(split, end))
    resumed = make()
    fastnet.load_checkpoint(path, resumed.network)
    resumed.train(range(split, end))
    pairs = zip(program.model.get_weights(), resumed.model.get_weights(), strict=True)
    return all(np.array_equal(*pair) for pair in pairs)


def changes_once(name: str, value: float) -> Callable[[Any, int], None]:
    """Return a function that sets an attribute of a model's optimizer before step 2."""

    def change(model: Any, step: int) -> None:
        if step == 2:
            optimizer = model.current_optimizer
            setattr(getattr(optimizer, "inner_optimizer", optimizer), name, value)

    return change


@pytest.mark.parametrize(
    ("optimizer_fn", "name", "value"),
    [
        (lambda: optimizers.SGD(0.1, momentum=0.9), "momentum", 0.1),
        (lambda: optimizers.Adam(0.1), "beta_1", 0.1),
        (lambda: optimizers.SGD(0.1), "global_clipnorm", 0.01),
        (lambda: optimizers.SGD(0.1, global_clipnorm=0.01), "global_clipnorm", None),
        (lambda: keras.mixed_precision.LossScaleOptimizer(optimizers.Adam(0.1)), "beta_1", 0.1),
    ],
)
def test_numbers_of_optimizers_are_restored(
    tmp_path: Path, optimizer_fn: Any, name: str, value: float
) -> None:
    assert resumed_equals(
        tmp_path / "run", lambda: Program(optimizer_fn, before=changes_once(name, value))
    )


def from_default() -> Any:
    held = tf.Variable(0.0, trainable=False)

    def add(x: Any, count: Any = held) -> Any:
        return x / count.assign_add(1.0)

    return LambdaOp(add, "x", "x")


def from_class() -> Any:
    class Counting(TensorOp):
        count = tf.Variable(0.0, trainable=False)

        def forward(self, data: Any, state: Any) -> Any:
            return data / self.count.assign_add(1.0)

    return Counting(inputs="x", outputs="x")


def from_tf_function() -> Any:
    count = tf.Variable(0.0, trainable=False)

    @tf.function
    def add(x: Any) -> Any:
        return x / count.assign_add(1.0)

    return LambdaOp(lambda x: add(x), "x", "x")


@pytest.mark.parametrize("make_op", [from_default, from_class, from_tf_function])
def test_variables_are_found(tmp_path: Path, make_op: Callable[[], Any]) -> None:
    assert resumed_equals(tmp_path / "run", lambda: Program("sgd", lambda: [make_op()]))


@pytest.mark.parametrize("unfreezes", [False, True])
def test_merged_gradients_of_frozen_weights(tmp_path: Path, unfreezes: bool) -> None:
    def freeze(model: Any, step: int) -> None:
        model.layers[0].trainable = step < 2 or (unfreezes and step > 5)

    make = lambda: Program("sgd", before=freeze, merge_grad=7)  # noqa: E731
    assert resumed_equals(tmp_path / "run", make)
