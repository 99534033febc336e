"""One TensorFlow program, run in FastEstimator and in fastnet, and what came of it compared.

It has the names of sides.py, whose `Sides` it takes: here are TensorFlow's seeds, data, models and
comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.integrations.sides import LOSS, Program, Sides, one_hot_loss, steps, trainer

tf = pytest.importorskip("tensorflow")

MARKS = pytest.mark.tf

__all__ = [
    "LOSS",
    "MARKS",
    "NAME",
    "WEIGHTS",
    "adam",
    "agree",
    "assert_same",
    "batches",
    "clip",
    "dense",
    "distance",
    "freeze",
    "mean",
    "mlp",
    "momenta",
    "momentum",
    "network_class",
    "noisy",
    "one_hot_loss",
    "ones_like",
    "random_numbers_start_over",
    "run",
    "square",
    "start_over",
    "steps",
    "tensor",
    "trainer",
    "weights",
    "zeros_like",
]

NAME = "tf"

# float32's own rounding, step upon step
WEIGHTS = 1e-5


def start_over(seed: int = 0) -> None:
    """Seed every generator, and let Keras count names of layers, and its policy, from the start."""
    tf.keras.backend.clear_session()
    tf.keras.mixed_precision.set_global_policy("float32")  # which FastEstimator's build changes
    tf.keras.utils.set_random_seed(seed)


def random_numbers_start_over() -> None:
    """Let what draws numbers start over, as it does wherever a network of FastEstimator is left."""
    tf.keras.backend.clear_session()


def run(sides: Sides, program: Program, seed: int = 0) -> tuple[Any, Any]:
    """Run a program in both, from the same seeds; FastEstimator's result comes first."""
    results = []
    for lib in (sides.fastestimator, sides.fastnet):
        start_over(seed)
        results.append(program(lib))
    start_over()
    return results[0], results[1]


def agree(sides: Sides, program: Program, rtol: float = 0.0, seed: int = 0) -> Any:
    """Check that a program has the same result in both, and give fastnet's.

    Without a tolerance the same means equal to the bit.
    """
    expected, actual = run(sides, program, seed)
    assert_same(actual, expected, rtol)
    return actual


def assert_same(actual: Any, expected: Any, rtol: float = 0.0, path: str = "result") -> None:
    """Compare two nests: values, shapes, dtypes, keys, and which of them are tensors.

    Models stand for their weights. A ChainMap counts as the dict that it looks like.
    """
    if isinstance(expected, tf.keras.Model):
        actual, expected = actual.get_weights(), expected.get_weights()
    if tf.is_tensor(expected) or isinstance(expected, (np.ndarray, np.generic, float)):
        assert tf.is_tensor(actual) == tf.is_tensor(expected), f"{path}: {type(actual)}"
        one, other = np.asarray(actual), np.asarray(expected)
        assert one.dtype == other.dtype, f"{path}: {one.dtype}, not {other.dtype}"
        assert one.shape == other.shape, f"{path}: {one.shape}, not {other.shape}"
        if rtol:
            np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol / 10, err_msg=path)
        else:
            np.testing.assert_array_equal(one, other, err_msg=path)
    elif isinstance(expected, Mapping):
        assert isinstance(actual, Mapping), path
        assert set(actual) == set(expected), path
        for key in expected:
            assert_same(actual[key], expected[key], rtol, f"{path}[{key!r}]")
    elif isinstance(expected, Sequence) and not isinstance(expected, (str, bytes)):
        assert type(actual) is type(expected), path
        assert len(actual) == len(expected), path
        for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert_same(one, other, rtol, f"{path}[{index}]")
    else:
        assert actual == expected, path


def batches(count: int, seed: int = 0, size: int = 8, width: int = 6) -> list[dict[str, Any]]:
    """Make batches: `x` to predict from, and as truth classes, one-hot classes and numbers."""
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        label = generator.integers(0, 3, size)
        made.append(
            {
                "x": tf.constant(generator.normal(size=(size, width)), tf.float32),
                "label": tf.constant(label),
                "onehot": tf.one_hot(label, 3),
                "target": tf.constant(generator.normal(size=(size, 3)), tf.float32),
            }
        )
    return made


def mlp(width: int = 6, outputs: int = 3, hidden: int = 5) -> Any:
    """Make a small network; its weights follow from TensorFlow's seed."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((width,)),
            layers.Dense(hidden, activation="tanh", name="hidden"),
            layers.Dense(outputs, name="last"),
        ]
    )


def dense(inputs: int, outputs: int) -> Any:
    layers = tf.keras.layers
    return tf.keras.Sequential([layers.Input((inputs,)), layers.Dense(outputs, name="inner")])


def noisy() -> Any:
    """Make a network that acts differently in training and out of it, and that draws numbers."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((6,)),
            layers.Dense(7),
            layers.BatchNormalization(momentum=0.5),
            layers.Dropout(0.3),
            layers.Dense(3),
        ]
    )


def network_class(lib: Any) -> Any:
    return lib.network.TFNetwork


def tensor(values: Any) -> Any:
    return tf.constant(values)


def adam(rate: float) -> Any:
    return lambda: tf.keras.optimizers.legacy.Adam(rate)


def momentum() -> Any:
    return lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9)


def momenta(model: Any) -> list[np.ndarray]:
    """Return what a model's optimizer remembers."""
    optimizer = model.current_optimizer
    variables = optimizer.variables
    return [np.asarray(one) for one in (variables() if callable(variables) else variables)]


def weights(model: Any) -> Any:
    """Return a model's weights as they are now."""
    return model.get_weights()


def freeze(model: Any, first: bool, last: bool) -> None:
    """Decide which of the two layers of an `mlp` are not trained."""
    model.layers[0].trainable = not first
    model.layers[1].trainable = not last


def mean(x: Any, axes: Any = None) -> Any:
    return tf.reduce_mean(x, axes, keepdims=axes is not None)


def square(x: Any) -> Any:
    return tf.square(x)


def distance(one: Any, other: Any) -> Any:
    return tf.reduce_sum(tf.abs(one - other))


def clip(x: Any, low: float, high: float) -> Any:
    return tf.clip_by_value(x, low, high)


ones_like, zeros_like = tf.ones_like, tf.zeros_like
