"""The functions of the backend on tensors of each framework, compared with FastEstimator's.

Results are bitwise equal but where a rounding is named. Values for every dtype and axis are
compared with numpy in tests/backend.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.fast import test_backend as plain
from tests.fast.test_backend import VALUES
from tests.integrations import sides as torch_sides
from tests.integrations import tf_sides
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
VOLUMES, TRUE_VOLUMES = shares(2, 3, 6, 5, 3), bits(2, 3, 6, 5, 3)
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
    "clip to tensors": lambda b, t: b.clip_by_value(
        t(X), b.reduce_min(t(X[0])), b.reduce_max(t(X[0]))
    ),
    "pow": lambda b, t: [b.pow(t(X), 3), b.pow(t(POSITIVE), t(X)), b.tensor_pow(t(POSITIVE), 1.5)],
    "gather a column": lambda b, t: b.gather(t(X), t(np.array([[2], [0], [1]], "int32"))),
    "gather a matrix": lambda b, t: b.gather(t(X), t(np.array([[2, 1], [0, 0]]))),
    "gather floats": lambda b, t: b.gather(t(X), t(np.array([2.0, 1.0]))),
    "gather_from_batch column": lambda b, t: b.gather_from_batch(t(X[:1]), t(np.array([[3]]))),
    "ones_like": lambda b, t: b.ones_like(t(X), dtype="int32"),
    "zeros_like": lambda b, t: b.zeros_like(t(X), dtype="float64"),
    "roll": lambda b, t: [b.roll(t(X), -2, -1), b.roll(t(X), [1, 2], [0, 2])],
    "squeeze": lambda b, t: [b.squeeze(t(X[:, :1])), b.squeeze(t(X[:, :1]), axis=1)],
    "where a number": lambda b, t: [b.where(t(X > 0), t(X), 0.0), b.where(t(X > 0), 2, t(X))],
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

# The same for tensors only. Losses with all their settings are compared as ops, in test_ops.py.
OF_TENSORS: dict[str, Call] = {
    "dice_score": lambda b, t: [
        b.dice_score(t(VOLUMES), t(TRUE_VOLUMES), **settings)
        for settings in (
            {},
            {"soft_dice": True, "channel_average": True, "sample_average": True},
            {"threshold": 0.5, "mask_overlap": False},
            {"empty_nan": True, "threshold": 0.99},
            {"channel_weights": [1.0, 0.5, 2.0], "epsilon": 0.5},
        )
    ],
    "focal_loss": lambda b, t: b.focal_loss(t(bits(5, 4)), t(shares(5, 4)), gamma=0.5, alpha=0.75),
    "resize_3d": lambda b, t: [
        b.resize_3d(t(VOLUMES), (3, 2, 5), mode) for mode in ("nearest", "area")
    ],
}


@ALL
@pytest.mark.parametrize("name", CALLS)
def test_functions(sides: Sides, name: str, framework: str) -> None:
    check(sides, CALLS[name], framework, CALL_ROUNDINGS.get(name, 0.0))


@ALL
@pytest.mark.parametrize("axis", [None, 2, [0, 2]])
@pytest.mark.filterwarnings("ignore:the `interpolation=` argument")
def test_reductions(sides: Sides, framework: str, axis: Any) -> None:
    for keepdims in (False, True):
        for name in ("reduce_max", "reduce_min", "reduce_sum", "reduce_mean", "reduce_std"):
            for array in (X, integers(3, 4, 5))[
                : 1 if name in ("reduce_mean", "reduce_std") else 2
            ]:
                check(sides, lambda b, t: getattr(b, name)(t(array), axis, keepdims), framework)  # noqa: B023
        for percentiles in (33, [0, 25, 99]):

            def percentile(b: Any, t: Make) -> Any:
                # FastEstimator writes into the list.
                axes = list(axis) if isinstance(axis, list) else axis
                return b.percentile(t(X), percentiles, axis=axes, keepdims=keepdims)  # noqa: B023

            check(sides, percentile, framework)


@ALL
@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "int64", "uint8"])
def test_cast(sides: Sides, framework: str, dtype: str) -> None:
    for array in (np.abs(X) * 3, integers(3, 4), bits(3, 4, dtype="bool")):
        check(sides, lambda b, t: b.cast(t(array), dtype), framework)  # noqa: B023
    check(sides, lambda b, t: b.cast([1, 2, 3], t(np.ones(1, dtype))), framework)


@ALL
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_precision_of_the_policy(sides: Sides, framework: str, policy: str) -> None:
    def convert(b: Any, t: Make) -> Any:
        tf.keras.mixed_precision.set_global_policy(policy)
        converted = b.convert_tensor_precision(t(X.astype("float64")))
        tf.keras.mixed_precision.set_global_policy("float32")
        return converted

    check(sides, convert, framework)


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
@pytest.mark.parametrize("name", OF_TENSORS)
def test_functions_of_tensors(sides: Sides, name: str, framework: str) -> None:
    # Torch's fused losses sum in another order, and so do TensorFlow's averages over areas.
    check(sides, OF_TENSORS[name], framework, 1e-5 if name == "resize_3d" else ROUNDING)


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


def agree(sides: Sides, framework: str, program: Any) -> None:
    """Run a program with a backend, a model and a function that makes tensors."""
    fw: Any = torch_sides if framework == "torch" else tf_sides

    def run(lib: Any) -> Any:
        model = lib.build(fw.mlp, "adam", model_name="mlp")
        return program(lib.backend, model, MAKERS[framework])

    sides.agree(run)


def detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else tf.convert_to_tensor(value)


def trained(model: Any) -> Any:
    is_torch = isinstance(model, torch.nn.Module)
    return list(model.parameters()) if is_torch else model.trainable_variables


@TENSORS
def test_gradients_and_updates(sides: Sides, framework: str) -> None:
    def program(b: Any, model: Any, t: Any) -> Any:
        array = random(4, 6)
        told = [detached(b.feed_forward(model, one, training=False)) for one in (t(array), array)]
        for rate in (0.02, 0.001):
            b.set_lr(model, rate)
            with tf.GradientTape(persistent=True) as tape:
                x = b.watch(t(array), tape=tape)
                loss = b.reduce_mean(b.pow(b.feed_forward(model, x), 2))
                told.append(detached(b.get_gradient(loss, x, tape=tape)))
                gradients = b.get_gradient(loss, trained(model), tape=tape, retain_graph=False)
            told += [detached(one) for one in gradients]
            b.update_model(model, gradients)
            told.append(float(b.get_lr(model)))
        return told, model

    agree(sides, framework, program)


@TENSORS
def test_deferred_updates(sides: Sides, framework: str) -> None:
    def program(b: Any, model: Any, t: Any) -> Any:
        gradients = [t(np.full(tuple(one.shape), 0.5, "float32")) for one in trained(model)]
        deferred: dict[str, list[Any]] = {}
        b.update_model(model, gradients, defer=True, deferred=deferred)
        before = [np.array(detached(one)) for one in trained(model)]
        for update in deferred["mlp"]:
            update()
        return before, list(deferred), len(deferred["mlp"]), model

    agree(sides, framework, program)


@TENSORS
def test_l2_regularization(sides: Sides, framework: str) -> None:
    def program(b: Any, model: Any, t: Any) -> Any:
        if b.__name__.startswith("fastestimator"):
            b = importlib.import_module("fastestimator.backend._l2_regularization")
        return detached(b.l2_regularization(model, 2.0))

    agree(sides, framework, program)


def test_no_function_is_left_out(sides: Sides) -> None:
    """Every function that both packages export is called here."""
    both = set(dir(sides.fastestimator.backend)) & set(sides.fastnet.backend.__all__)
    text = Path(__file__).read_text()
    called = set(re.findall(r"\bb(?:ackend)?\.(\w+)\(", text))
    called |= {*VALUES, "load_model", "save_model"}  # in swap/test_files.py
    assert both - called == set()
    assert len(both) > 60
