"""The functions of the backend on tensors of each framework, compared with FastEstimator's.

Results are bitwise equal but where a rounding is named. Values for
every dtype and axis are compared with numpy in tests/backend, and losses with all their settings
and functions of models as ops, in test_ops.py and test_training.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.fast import test_backend as plain
from tests.fast.test_backend import VALUES
from tests.integrations.sides import Sides, start_over
from tests.integrations.tf_sides import MARKS, tf

pytestmark = MARKS

# One rounding of float32, up in one package and down in the other.
ROUNDING = 2.4e-7

MAKERS: dict[str, Callable[[Any], Any]] = {
    "torch": torch.from_numpy,
    "tf": tf.convert_to_tensor,
    "numpy": lambda array: array,
}
# FastEstimator flips lists of axes only, and the lengths of a shape are tensors in TensorFlow.
OTHERWISE = {"flip", "get_shape"}
LOSSES = ("crossentropy", "hinge", "huber", "_loss", "mean_squared_error")
ALL = pytest.mark.parametrize("framework", list(MAKERS))
TENSORS = pytest.mark.parametrize("framework", ["torch", "tf"])

Make = Callable[[Any], Any]
Call = Callable[[Any, Make], Any]


def random(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def shares(*shape: int, dtype: str = "float32") -> Any:
    return np.random.default_rng(0).uniform(0.02, 0.98, shape).astype(dtype)


def integers(*shape: int, high: int = 3, dtype: str = "int64") -> Any:
    return np.random.default_rng(2).integers(0, high, shape).astype(dtype)


def bits(*shape: int, dtype: str = "float32") -> Any:
    return integers(*shape, high=2, dtype=dtype)


X = random(3, 4, 5)
POSITIVE = shares(3, 4, 5) * 7
DISTANCES = np.abs(random(6, 4))
IMAGES = shares(2, 6, 7, 3)
# As many channels as rows, so that each framework finds three of them.
PIXELS = (shares(2, 3, 3, 3) * 255).astype("uint8")
SCORES = random(6, 3)
LAMBERT = np.concatenate([np.linspace(-0.36, 0.5, 50), np.logspace(-1, 6, 50)]).astype("float32")


def compare(actual: Any, expected: Any, rtol: float) -> None:
    """Compare two results: their framework, dtypes, shapes and values."""
    if isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            compare(one, other, rtol)
        return
    assert isinstance(actual, torch.Tensor) == isinstance(expected, torch.Tensor)
    assert bool(tf.is_tensor(actual)) == bool(tf.is_tensor(expected))
    if hasattr(expected, "dtype"):
        assert str(actual.dtype) == str(expected.dtype)
    one, other = np.asarray(actual), np.asarray(expected)
    assert one.shape == other.shape
    rtol = max(rtol, 2e-3) if rtol and one.dtype == "float16" else rtol
    np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol / 10, equal_nan=True)


def check(sides: Sides, call: Call, framework: str, rtol: float = 0.0) -> None:
    results = []
    for lib in (sides.fastnet, sides.fastestimator):
        start_over()
        results.append(call(lib.backend, MAKERS[framework]))
    compare(*results, rtol)


# Calls whose results FastEstimator defines; the plain ones are those of tests/fast/test_backend.py.
CALLS: dict[str, Call] = {
    "check_nan": lambda b, t: [b.check_nan(t(np.array([1.0, last]))) for last in (2, np.nan)],
    "gather a column": lambda b, t: b.gather(t(X), t(np.array([[2], [0], [1]], "int32"))),
    "gather a matrix": lambda b, t: b.gather(t(X), t(np.array([[2, 1], [0, 0]]))),
    "gather floats": lambda b, t: b.gather(t(X), t(np.array([2.0, 1.0]))),
    "gather_from_batch column": lambda b, t: b.gather_from_batch(t(X[:1]), t(np.array([[3]]))),
    "random_normal_like": lambda b, t: b.random_normal_like(t(X), mean=1.0, std=2.0),
    "random_uniform_like": lambda b, t: b.random_uniform_like(t(X), minval=-1.0, dtype="float64"),
    "flip": lambda b, t: b.flip(t(X), [-1, 1]),
    "get_shape": lambda b, t: [int(one) for one in b.get_shape(t(X))],
    "get_image_dims": lambda b, t: [int(one) for one in b.get_image_dims(t(IMAGES))],
    "normalize by channel": lambda b, t: b.normalize(t(PIXELS), [0.1, 0.2, 0.3], [0.5, 0.6, 0.7]),
    "iwd": lambda b, t: [b.iwd(t(DISTANCES)), b.iwd(t(DISTANCES), power=2.0, eps=t(X[0, 0, :1]))],
    # Below 0 the iterations end in different places, both within the precision of the dtype.
    "lambertw": lambda b, t: b.lambertw(t(LAMBERT)),
}
CALL_ROUNDINGS = {"iwd": ROUNDING, "lambertw": 5e-6}


@ALL
@pytest.mark.parametrize("name", CALLS)
def test_functions(sides: Sides, name: str, framework: str) -> None:
    check(sides, CALLS[name], framework, CALL_ROUNDINGS.get(name, 0.0))


@ALL
@pytest.mark.parametrize("name", sorted(VALUES.keys() - OTHERWISE))
def test_plain_calls(
    sides: Sides, monkeypatch: pytest.MonkeyPatch, name: str, framework: str
) -> None:
    if framework == "numpy" and name.endswith(LOSSES):
        pytest.skip("FastEstimator computes it of tensors only")

    def call(b: Any, t: Make) -> Any:
        monkeypatch.setattr(plain, "backend", b)
        return VALUES[name][0](t)

    check(sides, call, framework, ROUNDING)


@TENSORS
def test_class_weights(sides: Sides, framework: str) -> None:
    """They are a table in FastEstimator's functions for TensorFlow, and a dict in fastnet's."""
    weights = {0: 0.5, 1: 3.0}

    def losses(b: Any, t: Any) -> Any:
        settings: Any = {"from_logits": True, "class_weights": weights}
        if framework == "tf" and b is sides.fastestimator.backend:
            keys, values = tf.constant(list(weights)), tf.constant(list(weights.values()))
            table = tf.lookup.KeyValueTensorInitializer(keys, values)
            settings["class_weights"] = tf.lookup.StaticHashTable(table, 1.0)
        classes = np.array([2, 0, 1, 2, 1, 0])
        return [
            b.categorical_crossentropy(
                t(SCORES), t(np.eye(3, dtype="float32")[classes]), **settings
            ),
            b.sparse_categorical_crossentropy(t(SCORES), t(classes), **settings),
            b.binary_crossentropy(t(SCORES[:, :1]), t(bits(6, 1)), **settings),
        ]

    check(sides, losses, framework, ROUNDING)


@ALL
def test_conversions(sides: Sides, framework: str) -> None:
    t = MAKERS[framework]

    def program(lib: Any) -> Any:
        # FastEstimator writes into the nest.
        nest = {"a": t(random(2, 3)), "b": [t(bits(2)), (3, 4.5)], "c": "text", "d": None}
        shapes = [
            str(lib.backend.to_shape({"a": nest["a"], "b": nest["b"][:1]}, **settings))
            for settings in ({}, {"add_batch": True}, {"exact_shape": False})
        ]
        told = [str(lib.backend.to_type({"a": nest["a"], "b": [(nest["a"],)]})), shapes]
        for target in ("torch", "tf", "np"):
            nest = lib.backend.to_tensor(nest, target)
            told.append([type(one).__name__ for one in (nest["a"], nest["b"][0], *nest["b"][1])])
        return told, nest

    sides.agree(program)
