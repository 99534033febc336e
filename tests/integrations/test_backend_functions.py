"""The backend's functions on tensors of each framework, beside FastEstimator's.

Each case is written once, for a library and for a function that makes tensors of an array. What is
equal to the bit is said to be so; the rest agrees to float32's rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.integrations.sides import Sides

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.tf

# one rounding of float32, up in one package and down in the other
ROUNDING = 2.4e-7

MAKERS: dict[str, Callable[[Any], Any]] = {
    "torch": torch.from_numpy,
    "tf": tf.convert_to_tensor,
    "numpy": lambda array: array,
}

Make = Callable[[Any], Any]
Call = Callable[[Any, Make], Any]


def random(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def shares(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    return np.random.default_rng(seed).uniform(0.02, 0.98, shape).astype(dtype)


def bits(*shape: int, seed: int = 1, dtype: str = "float32") -> Any:
    return np.random.default_rng(seed).integers(0, 2, shape).astype(dtype)


def integers(*shape: int, high: int = 3, seed: int = 2, dtype: str = "int64") -> Any:
    return np.random.default_rng(seed).integers(0, high, shape).astype(dtype)


X = random(3, 4, 5)
POSITIVE = shares(3, 4, 5) * 7
MASKS, TRUTH = shares(4, 6, 5, 3), bits(4, 6, 5, 3)
FLOATS = ("float32", "float64", "float16")


def close(actual: Any, expected: Any, rtol: float) -> None:
    """Compare two results: whose they are, types, shapes, values."""
    assert isinstance(actual, torch.Tensor) == isinstance(expected, torch.Tensor)
    assert bool(tf.is_tensor(actual)) == bool(tf.is_tensor(expected))
    if hasattr(expected, "dtype"):
        assert str(actual.dtype) == str(expected.dtype)
    one, other = (
        np.asarray(each.detach() if isinstance(each, torch.Tensor) else each)
        for each in (actual, expected)
    )
    assert one.shape == other.shape
    rtol = max(rtol, 2e-3) if rtol and one.dtype == "float16" else rtol
    np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol / 10, equal_nan=True)


def check(sides: Sides, call: Call, framework: str, rtol: float = 0.0) -> None:
    results = []
    for lib in (sides.fastnet, sides.fastestimator):
        np.random.seed(0)
        torch.manual_seed(0)
        tf.random.set_seed(0)
        results.append(call(lib.backend, MAKERS[framework]))
    actual, expected = results
    if isinstance(expected, (list, tuple)) and not hasattr(expected, "dtype"):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            close(one, other, rtol)
    else:
        close(actual, expected, rtol)


ALL = pytest.mark.parametrize("framework", ["torch", "tf", "numpy"])
TENSORS = pytest.mark.parametrize("framework", ["torch", "tf"])

ELEMENTS: dict[str, Call] = {
    "abs": lambda b, t: b.abs(t(X)),
    "abs ints": lambda b, t: b.abs(t(integers(4, 5) - 1)),
    "check_nan": lambda b, t: b.check_nan(t(X)),
    "check_nan nan": lambda b, t: b.check_nan(t(np.array([1.0, np.nan]))),
    "check_nan inf": lambda b, t: b.check_nan(t(np.array([1.0, -np.inf]))),
    "clip": lambda b, t: b.clip_by_value(t(X), -0.5, 0.5),
    "clip below": lambda b, t: b.clip_by_value(t(X), min_value=0),
    "clip above": lambda b, t: b.clip_by_value(t(X), max_value=0.25),
    "clip to tensors": lambda b, t: b.clip_by_value(
        t(X), b.reduce_min(t(X[0])), b.reduce_max(t(X[0]))
    ),
    "clip float64 to tensors": lambda b, t: b.clip_by_value(
        t(X.astype("float64")), t(np.array(-0.25)), t(np.array(0.25))
    ),
    "clip ints": lambda b, t: b.clip_by_value(t(integers(9, high=9)), 2, 5),
    "maximum": lambda b, t: b.maximum(t(X), t(random(3, 4, 5, seed=1))),
    "maximum of a scalar": lambda b, t: b.maximum(t(X), t(np.array(0.1, "float32"))),
    "round": lambda b, t: b.tensor_round(t(np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.3]))),
    "sign": lambda b, t: b.sign(t(np.array([-2.5, -0.0, 0.0, 3.0], "float32"))),
    "sqrt": lambda b, t: b.tensor_sqrt(t(POSITIVE)),
    "exp": lambda b, t: b.exp(t(X)),
    "pow": lambda b, t: b.pow(t(X), 3),
    "pow of a tensor": lambda b, t: b.pow(t(POSITIVE), t(X)),
    "tensor_pow": lambda b, t: b.tensor_pow(t(POSITIVE), 1.5),
    "matmul": lambda b, t: b.matmul(t(X), t(random(5, 2, seed=1))),
    "matmul stacks": lambda b, t: b.matmul(t(X), t(random(3, 5, 2, seed=1))),
}


@ALL
@pytest.mark.parametrize("case", ELEMENTS)
def test_elements(sides: Sides, case: str, framework: str) -> None:
    check(sides, ELEMENTS[case], framework)


@ALL
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_argmax(sides: Sides, framework: str, axis: int) -> None:
    for array in (X, integers(6, 7, high=3), integers(6, 7, dtype="int32")):
        check(sides, lambda b, t: b.argmax(t(array), axis=axis), framework)  # noqa: B023


@ALL
@pytest.mark.parametrize("dtype", FLOATS)
def test_zscore(sides: Sides, framework: str, dtype: str) -> None:
    check(sides, lambda b, t: b.zscore(t(X.astype(dtype))), framework, ROUNDING)
    check(sides, lambda b, t: b.zscore(t(np.full((3, 2), 4.0, dtype))), framework)


@ALL
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lambertw(sides: Sides, framework: str, dtype: str) -> None:
    # below 0 the two stop at different places, both as near as the type tells apart
    z = np.concatenate([np.linspace(-0.36, 0.5, 50), np.logspace(-1, 6, 50)]).astype(dtype)
    check(sides, lambda b, t: b.lambertw(t(z)), framework, 5e-6)


@ALL
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "settings", [{}, {"power": 2.0}, {"max_prob": 0.9, "pairwise_distance": 3.0, "power": 0.5}]
)
def test_iwd(sides: Sides, framework: str, dtype: str, settings: Any) -> None:
    distances = np.abs(random(6, 4, dtype=dtype))
    distances[0, 0] = 0.0
    check(sides, lambda b, t: b.iwd(t(distances), **settings), framework, ROUNDING)
    eps = np.array(0.5, dtype)
    check(sides, lambda b, t: b.iwd(t(distances), eps=t(eps), **settings), framework, ROUNDING)


@ALL
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, 2, -1, [0], [0, 2], [1, 2], [0, 1, 2]])
class TestReductions:
    @pytest.mark.parametrize("name", ["reduce_max", "reduce_min"])
    def test_extremes(
        self, sides: Sides, framework: str, axis: Any, keepdims: bool, name: str
    ) -> None:
        for array in (X, X.astype("float16"), integers(3, 4, 5)):
            check(sides, lambda b, t: getattr(b, name)(t(array), axis, keepdims), framework)  # noqa: B023

    @pytest.mark.parametrize("name", ["reduce_mean", "reduce_sum", "reduce_std"])
    def test_sums(self, sides: Sides, framework: str, axis: Any, keepdims: bool, name: str) -> None:
        for dtype in ("float32", "float64"):
            array = X.astype(dtype)
            check(sides, lambda b, t: getattr(b, name)(t(array), axis, keepdims), framework)  # noqa: B023

    def test_sums_of_ints(self, sides: Sides, framework: str, axis: Any, keepdims: bool) -> None:
        for dtype in ("int64", "int32"):
            array = integers(3, 4, 5, dtype=dtype)
            check(sides, lambda b, t: b.reduce_sum(t(array), axis, keepdims), framework)  # noqa: B023

    @pytest.mark.parametrize("percentiles", [0, 33, 50, 100, [10], [0, 25, 99]])
    def test_percentile(
        self, sides: Sides, framework: str, axis: Any, keepdims: bool, percentiles: Any
    ) -> None:
        def call(b: Any, t: Make) -> Any:
            # FastEstimator writes into the list
            return b.percentile(
                t(X),
                percentiles,
                axis=list(axis) if isinstance(axis, list) else axis,
                keepdims=keepdims,
            )

        if framework == "numpy":
            with pytest.warns(DeprecationWarning, match="interpolation"):
                check(sides, call, framework)
        else:
            check(sides, call, framework)


IMAGES = shares(2, 6, 7, 3)

SHAPES: dict[str, Call] = {
    "concat": lambda b, t: b.concat([t(X), t(X + 1)], axis=1),
    "expand_dims": lambda b, t: b.expand_dims(t(X), axis=-1),
    "flip": lambda b, t: b.flip(t(X), [0]),
    "flip two": lambda b, t: b.flip(t(X), [-1, 1]),
    "gather": lambda b, t: b.gather(t(X), t(np.array([2, 0, 0, 1]))),
    "gather a column": lambda b, t: b.gather(t(X), t(np.array([[2], [0], [1]], "int32"))),
    "gather a row": lambda b, t: b.gather(t(X), t(np.array([[2, 1]]))),
    "gather one": lambda b, t: b.gather(t(X), t(np.array([1]))),
    "gather a matrix": lambda b, t: b.gather(t(X), t(np.array([[2, 1], [0, 0]]))),
    "gather floats": lambda b, t: b.gather(t(X), t(np.array([2.0, 1.0]))),
    "gather_from_batch": lambda b, t: b.gather_from_batch(t(X), t(np.array([3, 0, 2]))),
    "gather_from_batch column": lambda b, t: b.gather_from_batch(
        t(X), t(np.array([[3], [0], [2]]))
    ),
    "gather_from_batch of one": lambda b, t: b.gather_from_batch(t(X[:1]), t(np.array([[3]]))),
    "gather_from_batch matrix": lambda b, t: b.gather_from_batch(
        t(X[0]), t(np.array([3, 0, 2, 1]))
    ),
    "ones_like": lambda b, t: b.ones_like(t(X)),
    "ones_like ints": lambda b, t: b.ones_like(t(X), dtype="int32"),
    "permute": lambda b, t: b.permute(t(X), [2, 0, 1]),
    "reshape": lambda b, t: b.reshape(t(X), [5, -1]),
    "roll": lambda b, t: b.roll(t(X), 1, 0),
    "roll back": lambda b, t: b.roll(t(X), -2, -1),
    "roll two": lambda b, t: b.roll(t(X), [1, 2], [0, 2]),
    "squeeze": lambda b, t: b.squeeze(t(X[:, :1])),
    "squeeze an axis": lambda b, t: b.squeeze(t(X[:, :1]), axis=1),
    "transpose": lambda b, t: b.transpose(t(X[0])),
    "where": lambda b, t: b.where(t(X > 0), t(X), t(-X)),
    "where a number": lambda b, t: b.where(t(X > 0), t(X), 0.0),
    "where another": lambda b, t: b.where(t(X > 0), 2.0, t(X)),
    "where an int": lambda b, t: b.where(t(X > 0), 2, t(X)),
    "where numbers": lambda b, t: b.where(t(X > 0), 1.0, 0.0) * t(X),
    "where half": lambda b, t: b.where(t(X > 0), t(X.astype("float16")), 0.5),
    "zeros_like": lambda b, t: b.zeros_like(t(X), dtype="float64"),
    "random_normal_like": lambda b, t: b.random_normal_like(t(X), mean=1.0, std=2.0),
    "random_normal_like half": lambda b, t: b.random_normal_like(t(X), dtype="float16"),
    "random_uniform_like": lambda b, t: b.random_uniform_like(t(X), minval=-1.0, maxval=2.0),
    "random_uniform_like double": lambda b, t: b.random_uniform_like(t(X), dtype="float64"),
    "get_image_dims": lambda b, t: [int(each) for each in b.get_image_dims(t(IMAGES))],
    "get_image_dims of one": lambda b, t: [int(each) for each in b.get_image_dims(t(IMAGES[0]))],
    "get_shape": lambda b, t: [int(each) for each in b.get_shape(t(X))],
}


@ALL
@pytest.mark.parametrize("case", SHAPES)
def test_shapes(sides: Sides, case: str, framework: str) -> None:
    check(sides, SHAPES[case], framework)


@ALL
@pytest.mark.parametrize(
    "dtype",
    ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"],
)
class TestCast:
    def test_by_name(self, sides: Sides, framework: str, dtype: str) -> None:
        for array in (X * 3, integers(3, 4), bits(3, 4, dtype="bool")):
            # a negative number as an unsigned one is up to the machine
            given = np.abs(array) if dtype == "uint8" and array.dtype == "float32" else array
            check(sides, lambda b, t: b.cast(t(given), dtype), framework)  # noqa: B023

    def test_like(self, sides: Sides, framework: str, dtype: str) -> None:
        reference = np.ones(1, dtype)
        for value in (np.abs(X), integers(3, 4)):
            check(sides, lambda b, t: b.cast(t(value), t(reference)), framework)  # noqa: B023
        check(sides, lambda b, t: b.cast([1, 2, 3], t(reference)), framework)
        check(sides, lambda b, t: b.cast(2.0, t(reference)), framework)


@pytest.fixture
def half_precision() -> Iterator[None]:
    policies = tf.keras.mixed_precision
    before = policies.global_policy()
    policies.set_global_policy("mixed_float16")
    yield
    policies.set_global_policy(before)


class TestPolicy:
    @ALL
    def test_single(self, sides: Sides, framework: str) -> None:
        tf.keras.mixed_precision.set_global_policy("float32")
        for array in (X.astype("float64"), integers(3)):
            check(sides, lambda b, t: b.convert_tensor_precision(t(array)), framework)  # noqa: B023

    @ALL
    @pytest.mark.usefixtures("half_precision")
    def test_half(self, sides: Sides, framework: str) -> None:
        check(sides, lambda b, t: b.convert_tensor_precision(t(X)), framework)


@TENSORS
@pytest.mark.parametrize("mode", ["nearest", "area"])
@pytest.mark.parametrize(
    "size", [(2, 3, 4), (4, 6, 8), (3, 2, 5), (7, 9, 11), (1, 1, 1), (8, 12, 2)]
)
def test_resize_3d(sides: Sides, framework: str, mode: str, size: Any) -> None:
    # averages of several numbers, added up in another order
    rtol = 0.0 if mode == "nearest" or framework == "torch" else 1e-5
    volumes = random(2, 4, 6, 8, 3)
    if framework == "torch":
        volumes = np.ascontiguousarray(np.moveaxis(volumes, -1, 1))
    check(sides, lambda b, t: b.resize_3d(t(volumes), size, mode), framework, rtol)
    if mode == "nearest" and framework == "tf":
        check(sides, lambda b, t: b.resize_3d(t(integers(1, 4, 6, 8, 2)), size, mode), framework)


LOSSES = ("hinge", "l1_loss", "smooth_l1_loss", "huber")


def truth_for(loss: str, *shape: int) -> Any:
    return 2 * bits(*shape) - 1 if loss == "hinge" else random(*shape, seed=5)


@TENSORS
@pytest.mark.parametrize("shape", [(6, 4), (6, 3, 4), (6, 1), (6,)])
@pytest.mark.parametrize("loss", LOSSES)
def test_regression_losses(sides: Sides, framework: str, loss: str, shape: Any) -> None:
    truth, predicted = truth_for(loss, *shape), random(*shape)
    check(sides, lambda b, t: getattr(b, loss)(t(truth), t(predicted)), framework, ROUNDING)
    ints = np.sign(truth).astype("int64")
    if loss != "huber" or framework == "tf":
        check(sides, lambda b, t: getattr(b, loss)(t(ints), t(predicted)), framework, ROUNDING)
    if loss in ("smooth_l1_loss", "huber"):
        for beta in (0.3, 2.5):
            check(
                sides,
                lambda b, t: getattr(b, loss)(t(truth), t(predicted), beta=beta),  # noqa: B023
                framework,
                ROUNDING,
            )


@ALL
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"soft_dice": True},
        {"sample_average": True},
        {"channel_average": True},
        {"channel_average": True, "sample_average": True},
        {"mask_overlap": False},
        {"threshold": 0.5},
        {"threshold": 0.5, "mask_overlap": False, "soft_dice": True},
        {"empty_nan": True, "threshold": 0.99},
        {"epsilon": 0.5},
        {"channel_weights": [1.0, 0.5, 2.0]},
    ],
)
def test_dice_score(sides: Sides, framework: str, settings: Any) -> None:
    predicted, truth = MASKS.copy(), TRUTH.copy()
    truth[0, :, :, 1] = 0.0
    if framework == "torch":
        predicted, truth = (
            np.ascontiguousarray(np.moveaxis(each, -1, 1)) for each in (predicted, truth)
        )
    check(sides, lambda b, t: b.dice_score(t(predicted), t(truth), **settings), framework, ROUNDING)
    ints = truth.astype("int64")
    check(sides, lambda b, t: b.dice_score(t(predicted), t(ints), **settings), framework, ROUNDING)


@TENSORS
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"normalize": False},
        {"shape_reduction": "mean"},
        {"shape_reduction": "none"},
        {"shape_reduction": "none", "sample_reduction": "none"},
        {"sample_reduction": "sum"},
        {"sample_reduction": "none"},
        {"gamma": 0.5, "alpha": 0.75},
        {"gamma": 0, "alpha": 1},
    ],
)
@pytest.mark.parametrize("shape", [(5, 3), (5, 4, 3), (5, 1)])
class TestFocalLoss:
    def test_probabilities(self, sides: Sides, framework: str, settings: Any, shape: Any) -> None:
        predicted = shares(*shape)
        for truth in (bits(*shape), bits(*shape, dtype="int64")):
            check(
                sides,
                lambda b, t: b.focal_loss(t(truth), t(predicted), **settings),  # noqa: B023
                framework,
                ROUNDING,
            )

    def test_logits(self, sides: Sides, framework: str, settings: Any, shape: Any) -> None:
        truth, predicted = bits(*shape), random(*shape) * 3
        # eagerly, FastEstimator's TensorFlow makes probabilities of them first, and is less exact
        rtol = ROUNDING if framework == "torch" else 2e-5
        check(
            sides,
            lambda b, t: b.focal_loss(t(truth), t(predicted), from_logits=True, **settings),
            framework,
            rtol,
        )
