"""Losses whose public functions have settings that ops have not, and weights of SuperLoss."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from fastnet import backend
from fastnet.op.tensorop.loss import CrossEntropy
from tests.backend.makers import (
    FRAMEWORKS,
    WITH_GRADIENTS,
    gradient,
    in_graph,
    make,
    read,
    slopes,
    type_name,
)
from tests.conformance import frameworks

Array = np.ndarray[Any, Any]
TYPES = {"float32": 2e-5, "bfloat16": 8e-2}
PROBABILITIES = np.array([[0.2, 0.3, 0.5], [0.1, 0.8, 0.1]])


def focal_loss(
    true: Array,
    pred: Array,
    gamma: float = 2.0,
    alpha: float = 0.25,
    from_logits: bool = False,
    normalize: bool = True,
    shape_reduction: str = "sum",
    sample_reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Array:
    count = np.maximum(true.reshape(len(true), -1).sum(1), 1)
    soft = true + label_smoothing * (0.5 - true)
    odds = 1 / (1 + np.exp(-pred)) if from_logits else pred
    entropy = -soft * np.log(odds) - (1 - soft) * np.log(1 - odds)
    wrong = 1 - (odds * soft + (1 - odds) * (1 - soft))
    losses = alpha * soft + (1 - alpha) * (1 - soft)
    losses = losses * entropy * wrong**gamma
    if normalize:
        losses = losses / count.reshape([-1] + [1] * (losses.ndim - 1))
    axes = tuple(range(1, losses.ndim))
    if shape_reduction != "none":
        losses = getattr(losses, shape_reduction)(axis=axes)
    return losses if sample_reduction == "none" else getattr(losses, sample_reduction)()


# settings, and the kind of data
CASES: list[tuple[dict[str, Any], str]] = [
    ({}, "odds"),
    ({"from_logits": True}, "logits"),
    ({"normalize": False, "gamma": 1.5, "alpha": 0.75}, "odds"),
    ({"shape_reduction": "mean", "sample_reduction": "sum"}, "odds"),
    ({"shape_reduction": "none", "sample_reduction": "none"}, "odds"),
    ({"label_smoothing": 0.2, "sample_reduction": "none"}, "odds"),
]


def data(kind: str, shape: tuple[int, ...] = (4, 3, 5)) -> tuple[Array, Array]:
    """Make truth and predictions that half precision holds exactly."""
    source = np.random.default_rng(len(kind))
    bits = source.integers(0, 2, shape).astype(float)
    if kind == "odds":
        return bits, source.integers(1, 16, shape) / 16
    return bits, source.integers(-12, 12, shape) / 4 + 1 / 16


def dice_score(
    pred: Array,
    true: Array,
    soft_dice: bool = False,
    sample_average: bool = False,
    channel_average: bool = False,
    channel_weights: Any = None,
    mask_overlap: bool = True,
    threshold: float | None = None,
    empty_nan: bool = False,
    epsilon: float = 1e-6,
) -> Array:
    """Score (batch, channels, ...) masks, one after the other."""
    if not mask_overlap:
        pred = np.where(pred == pred.max(1, keepdims=True), pred, 0)
    if threshold is not None:
        pred = (pred > threshold).astype(float)
    scores = np.zeros(pred.shape[:2])
    for sample, channel in np.ndindex(scores.shape):
        one, two = pred[sample, channel], true[sample, channel]
        power = 2 if soft_dice else 1
        size = (one**power).sum() + (two**power).sum()
        scores[sample, channel] = 2 * (one * two).sum() / (size + epsilon)
        if channel_weights is not None:
            scores[sample, channel] *= channel_weights[channel]
        if empty_nan and not one.any() and not two.any():
            scores[sample, channel] = np.nan
    if channel_average:
        scores = scores.mean(1)
    return scores.mean(0) if sample_average else scores


DICE: list[dict[str, Any]] = [
    {},
    {"soft_dice": True},
    {"sample_average": True},
    {"channel_average": True, "sample_average": True},
    {"channel_weights": [0.5, 2.0, 1.0]},
    {"mask_overlap": False},
    {"threshold": 0.5},
    {"threshold": 0.97, "empty_nan": True},
    {"epsilon": 1.0},
]


def masks() -> tuple[Array, Array]:
    """Make predictions without ties, and truth, of shape (batch, channels, 4, 2); some is empty."""
    source = np.random.default_rng(0)
    pred = source.permutation(np.arange(1, 49)).reshape(2, 3, 4, 2) / 64
    true = source.integers(0, 2, pred.shape).astype(float)
    true[0, 1] = 0
    return pred, true


def check_slopes(framework: str, loss: Any, oracle: Any, pred: Any, dtype: str) -> None:
    """Compare gradients through a type with differences of an oracle."""
    near = max(TYPES[dtype], 1e-4)
    found = gradient(framework, lambda x: loss(backend.cast(x, dtype)), pred)
    np.testing.assert_allclose(found, slopes(oracle, pred, 1e-5), rtol=near, atol=near)


@WITH_GRADIENTS
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("settings", "kind"), CASES, ids=str)
def test_focal_loss(framework: str, settings: Any, kind: str, dtype: str) -> None:
    true, pred = data(kind)
    function, oracle, near = backend.focal_loss, focal_loss, TYPES[dtype]
    wanted = oracle(true, pred, **settings)
    truth = make(framework, true, dtype)
    loss = function(truth, make(framework, pred, dtype), **settings)
    assert type_name(loss) == dtype
    assert tuple(loss.shape) == wanted.shape
    np.testing.assert_allclose(read(loss), wanted, rtol=near, atol=near)
    check_slopes(
        framework,
        lambda x: function(truth, x, **settings),
        lambda x: oracle(true, x, **settings),
        pred,
        dtype,
    )
    # so do a truth of integers, an array, and a graph of any batch size
    for ints in (make(framework, true, "int64"), true.astype("int64")):
        loss = function(ints, make(framework, pred, "float32"), **settings)
        np.testing.assert_allclose(read(loss), wanted, rtol=2e-5, atol=2e-5)
    if framework == "tf":
        loss = in_graph(lambda t, p: function(t, p, **settings), true, pred)
        np.testing.assert_allclose(read(loss), wanted, rtol=2e-5, atol=2e-5)


def laid_out(framework: str, array: Array) -> Array:
    """Put channels where the framework wants them."""
    return np.moveaxis(array, 1, -1) if framework == "tf" else array


@WITH_GRADIENTS
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("settings", DICE, ids=lambda one: "-".join(one) or "plain")
def test_dice(framework: str, settings: Any, dtype: str) -> None:
    pred, true = masks()
    truth, near = make(framework, laid_out(framework, true)), TYPES[dtype]
    wanted = dice_score(pred, true, **settings)

    def score(x: Any) -> Any:
        return backend.dice_score(x, truth, **settings)

    found = score(make(framework, laid_out(framework, pred), dtype))
    assert type_name(found) == dtype
    np.testing.assert_allclose(read(found), wanted, rtol=near, atol=near / 10)
    if framework == "tf":
        found = in_graph(
            lambda p, t: backend.dice_score(p, t, **settings),
            laid_out(framework, pred),
            laid_out(framework, true),
        )
        np.testing.assert_allclose(read(found), wanted, rtol=2e-5)
    if "threshold" not in settings:
        given = laid_out(framework, pred)

        def oracle(x: Any) -> Any:
            moved = np.moveaxis(x, -1, 1) if framework == "tf" else x
            return dice_score(moved, true, **settings)

        check_slopes(framework, score, oracle, given, dtype)


@FRAMEWORKS
def test_fractions_are_no_class_labels(framework: str) -> None:
    pred, labels = make(framework, PROBABILITIES), make(framework, [0.9, 1.9])
    with pytest.raises(ValueError, match=r"whole numbers.*float64.*integer dtype"):
        backend.sparse_categorical_crossentropy(pred, labels)


@pytest.mark.parametrize("name", ["mean_squared_error", "l1_loss", "huber", "smooth_l1_loss"])
@pytest.mark.parametrize("framework", ["numpy", pytest.param("tf", marks=pytest.mark.tf)])
def test_unsigned_integers_are_subtracted_as_floats(framework: str, name: str) -> None:
    true, pred = (np.array([one], "uint8") for one in ([250, 10], [5, 30]))
    loss = getattr(backend, name)
    found = read(loss(make(framework, true), make(framework, pred)))
    wanted = read(loss(torch.tensor(true).double(), torch.tensor(pred).double()))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.tf
def test_tensorflow_averages_many_elements_of_half_precision() -> None:
    tf = pytest.importorskip("tensorflow")
    pred, true = (tf.fill((1, 70_000), tf.constant(one, tf.float16)) for one in (0.5, 1.0))
    losses = [backend.hinge, backend.l1_loss, backend.huber, backend.smooth_l1_loss]
    assert [loss(true, pred).numpy().tolist() for loss in losses] == [[0.5]] * 2 + [[0.125]] * 2


@pytest.mark.tf
def test_an_ignored_index_that_labels_of_tensorflow_cannot_hold() -> None:
    tf = pytest.importorskip("tensorflow")
    op = CrossEntropy(("p", "t"), "loss", form="sparse", ignore_index=-100)
    labels = tf.constant([156], tf.uint8)
    assert op.forward([tf.fill((1, 200), 1 / 200), labels], {}) > 5


def test_negative_labels_are_no_classes_of_arrays() -> None:
    with pytest.raises(IndexError, match="-1"):
        backend.sparse_categorical_crossentropy(np.array(PROBABILITIES), np.array([0, -1]))


@pytest.mark.parametrize("way", ["torch", pytest.param("tf-eager", marks=pytest.mark.tf)])
def test_l2_regularization_is_of_the_weights_that_are_trained(way: str) -> None:
    fw, layers = frameworks.FRAMEWORKS[way], frameworks.make_layers(2, 3, 1)
    model = fw.build(layers)
    fw.freeze(model, 0)
    wanted = 0.5 * sum((one**2).sum() / 2 for one in layers[1])
    np.testing.assert_allclose(read(backend.l2_regularization(model, beta=0.5)), wanted, rtol=1e-6)
    fw.freeze(model, 1)
    assert backend.l2_regularization(model) == 0


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("huber", "beta", 0),
        ("smooth_l1_loss", "beta", -1.0),
        ("focal_loss", "gamma", -1),
        ("focal_loss", "alpha", 2),
        ("focal_loss", "shape_reduction", "x"),
    ],
)
def test_refused_settings(name: str, setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{setting}.*{value!r}"):
        getattr(backend, name)(torch.ones(1, 2), torch.ones(1, 2), **{setting: value})


@FRAMEWORKS
def test_weights_of_classes(framework: str) -> None:
    """The weights multiply the negative log-likelihoods of the true classes."""
    pred, bits = make(framework, [[0.9], [0.3]]), make(framework, [[1.0], [0.0]])
    found = backend.binary_crossentropy(y_pred=pred, y_true=bits, class_weights={1: 2.0})
    np.testing.assert_allclose(read(found), (-np.log([0.9, 0.7]) * [2, 1]).mean(), rtol=1e-6)
    classes, each = np.array([1, 2]), -np.log([0.3, 0.1])
    for function, true in (
        (backend.categorical_crossentropy, np.eye(3)[classes]),
        (backend.sparse_categorical_crossentropy, classes),
        (backend.sparse_categorical_crossentropy, classes.astype("float32")),
    ):
        logits, true = make(framework, np.log(PROBABILITIES)), make(framework, true)
        settings: Any = {"average_loss": False, "class_weights": {2: 3.0}}
        for pred, from_logits in ((make(framework, PROBABILITIES), False), (logits, True)):
            found = function(pred, true, from_logits=from_logits, **settings)
            np.testing.assert_allclose(read(found), each * [1, 3], rtol=1e-6)


END = -2 / math.e
# excesses: far below the end, around it, and up to losses that are nearly left out
EXCESSES = np.concatenate(
    [
        np.linspace(-6, END, 30),
        END + np.linspace(-1e-6, 1e-6, 41),
        END + np.logspace(-6, -1, 60),
        np.linspace(-0.6, 1, 40),
        np.logspace(0, 3, 40),
    ]
)
ROOM = {"float32": 2.0**-23, "float64": 2.0**-52}


def exact(excess: Any, regularization: float) -> tuple[Any, Any]:
    """Work out confidences and weighed losses."""
    mpmath, pairs = pytest.importorskip("mpmath"), []
    with mpmath.workdps(40):
        least = mpmath.mpf(-1.9999998 / math.e)
        for one in excess:
            beta = mpmath.mpf(float(one)) / mpmath.mpf(regularization)
            log = -mpmath.lambertw(max(beta, least) / 2).real
            confidence = mpmath.exp(log)
            weighed = regularization * (beta * confidence + log**2)
            pairs.append((float(confidence), float(weighed)))
    confidences, weighed = np.transpose(pairs)
    return confidences, weighed


def weigh(framework: str, excess: Any, regularization: float = 1.0) -> Any:
    return import_module(f"fastnet.backend.{framework}.super_loss").weigh(excess, regularization)


@pytest.mark.parametrize("regularization", [1.0, 0.25])
@pytest.mark.parametrize("dtype", list(ROOM))
@pytest.mark.parametrize("framework", ["torch", pytest.param("tf", marks=pytest.mark.tf)])
def test_weights_of_super_loss(framework: str, dtype: str, regularization: float) -> None:
    excess = (EXCESSES * regularization).astype(dtype)
    confidences, weighed = exact(excess, regularization)
    found = weigh(framework, make(framework, excess), regularization)
    room = 12 * ROOM[dtype]
    np.testing.assert_allclose(read(found[1]) / confidences, 1, atol=room)
    np.testing.assert_allclose(read(found[0]), weighed, rtol=room, atol=room)
    slope = gradient(framework, lambda x: weigh(framework, x, regularization)[0], excess)
    np.testing.assert_allclose(slope / confidences, 1, atol=room)


@pytest.mark.parametrize("dtype", list(ROOM))
@WITH_GRADIENTS
def test_slopes_of_slopes_of_super_loss(framework: str, dtype: str) -> None:
    """Gradients can be taken of gradients, as by a penalty on them."""
    excess = np.array([-3.0, -0.7, 0.3, 4.0], dtype)

    def slopes(x: Any) -> Any:
        if framework == "torch":
            total = weigh(framework, x)[0].sum()
            return torch.autograd.grad(total, x, create_graph=True)[0]
        tf = pytest.importorskip("tensorflow")
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = weigh(framework, x)[0]
        return tape.gradient(total, x)

    found = gradient(framework, slopes, excess)
    wanted = gradient(framework, lambda x: weigh(framework, x)[1], excess)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
