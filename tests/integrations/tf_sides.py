"""One TensorFlow program, run in FastEstimator and in fastnet, and what came of it compared.

The twin of sides.py, whose `Sides` it takes: here are the seeds, the data and the comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.integrations.sides import LOSS, Program, Sides

tf = pytest.importorskip("tensorflow")

# FastEstimator's environment has a Keras that its Python is newer than
MARKS = [
    pytest.mark.tf,
    pytest.mark.filterwarnings("ignore:non-integer arguments to randrange"),
]

__all__ = [
    "LOSS",
    "MARKS",
    "WEIGHTS",
    "agree",
    "assert_same",
    "batches",
    "memory",
    "mlp",
    "one_hot_loss",
    "run",
    "start_over",
    "steps",
]

# float32's own rounding, step upon step
WEIGHTS = 1e-5


def start_over(seed: int = 0) -> None:
    """Seed every generator, and let Keras count names of layers, and its policy, from the start."""
    tf.keras.backend.clear_session()
    tf.keras.mixed_precision.set_global_policy("float32")  # which FastEstimator's build changes
    tf.keras.utils.set_random_seed(seed)


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


def one_hot_loss(lib: Any, outputs: str = "loss", y: str = "y", **settings: Any) -> Any:
    settings.setdefault("mode", "!infer")
    return lib.op.tensorop.loss.CrossEntropy(
        (y, "onehot"), outputs, from_logits=True, form="categorical", **settings
    )


def steps(
    network: Any,
    data: Sequence[Mapping[str, Any]],
    mode: str = "train",
    epoch: int = 1,
    ds_id: str = "",
    wanted: set[str] | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Open a network, run batches through it, and give the results."""
    with network(
        mode=mode, epoch=epoch, ds_id=ds_id, desired_output_keys=wanted, **settings
    ) as opened:
        return [dict(opened.run_step(batch)) for batch in data]


def memory(model: Any) -> list[np.ndarray]:
    """Give what a model's optimizer remembers."""
    optimizer = model.current_optimizer
    variables = optimizer.variables
    return [np.asarray(one) for one in (variables() if callable(variables) else variables)]
