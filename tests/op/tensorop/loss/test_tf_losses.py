"""Losses on TensorFlow tensors, against numpy and, where it is installed, FastEstimator.

Their classes are on the last axis, not on the second one as in torch.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet.backend
from fastnet.network import TFNetwork
from fastnet.network.build import build
from fastnet.op.tensorop.loss import CrossEntropy, Hinge, MeanSquaredError
from fastnet.op.tensorop.model import ModelOp
from tests.network.keras_models import (
    BY_NAME,
    assert_close,
    batches,
    infer,
    keras,
    layers,
    loop,
    softmax,
    supervised,
    train,
    twins,
)
from tests.op.tensorop.loss import numpy_losses

pytestmark = pytest.mark.tf

WEIGHTS: dict[int, float] = {0: 0.5, 2: 3.0}
SHAPES = {
    "binary": [(6,), (6, 1), (6, 3), (2, 3, 4)],
    "categorical": [(6, 3), (4, 5, 3), (2, 4, 5, 3)],
    "sparse": [(6, 3), (4, 5, 3), (2, 4, 5, 3)],
}
FORMS = [(form, shape) for form, shapes in SHAPES.items() for shape in shapes]
TRUTHS = ["uint8", "int8", "int16", "int32", "int64", "uint32", "bool", "float16", "float32"]


def op_of(built: bool = True, **kwargs: Any) -> CrossEntropy:
    op = CrossEntropy(inputs=("y_pred", "y"), outputs="loss", **kwargs)
    if built:
        op.build("tf")
    return op


def data_of(form: str, shape: tuple[int, ...], logits: bool, seed: int = 0) -> tuple[Any, Any]:
    """Predictions and truth, as arrays."""
    source = np.random.default_rng(seed + len(shape))
    scores = source.standard_normal(shape)
    if form == "binary":
        truth = source.integers(0, 2, shape)
        return (scores if logits else numpy_losses.sigmoid(scores)), truth
    truth = source.integers(0, shape[-1], shape[:-1])
    if form == "categorical":
        truth = np.eye(shape[-1], dtype=int)[truth]
    return (scores if logits else last_axis(numpy_losses.softmax, scores)), truth


def last_axis(function: Any, y_pred: Any, *rest: Any) -> Any:
    """Call a function of numpy_losses, whose classes are on the second axis."""
    moved = np.moveaxis(y_pred, -1, 1)
    if function is numpy_losses.softmax:
        return np.moveaxis(function(moved), 1, -1)
    if function is numpy_losses.categorical:
        return function(moved, np.moveaxis(rest[0], -1, 1), *rest[1:])
    return function(moved, *rest)


def expected(form: str, y_pred: Any, y: Any, logits: bool, weights: Any = None) -> Any:
    if form == "binary":
        y_pred = numpy_losses.sigmoid(y_pred) if logits else y_pred
        return numpy_losses.binary(y_pred, y, weights)
    y_pred = last_axis(numpy_losses.softmax, y_pred) if logits else y_pred
    return last_axis(getattr(numpy_losses, form), y_pred, y, weights)


@pytest.mark.parametrize(("form", "shape"), FORMS)
@pytest.mark.parametrize("logits", [False, True])
class TestCrossEntropy:
    @pytest.mark.parametrize("weights", [None, WEIGHTS, {}])
    @pytest.mark.parametrize("average", [True, False])
    def test_against_numpy(
        self, form: str, shape: tuple[int, ...], logits: bool, weights: Any, average: bool
    ) -> None:
        y_pred, y = data_of(form, shape, logits)
        wanted = expected(form, y_pred, y, logits, weights)
        for built in (True, False):
            op = op_of(
                built, form=form, from_logits=logits, average_loss=average, class_weights=weights
            )
            loss = op.forward([tf.constant(y_pred, tf.float32), tf.constant(y)], {})
            assert loss.dtype == tf.float32
            assert tuple(loss.shape) == (() if average else wanted.shape)
            np.testing.assert_allclose(loss, wanted.mean() if average else wanted, rtol=2e-5)

    @pytest.mark.parametrize("kind", TRUTHS)
    @pytest.mark.parametrize("weights", [None, WEIGHTS])
    def test_any_type_of_truth(
        self, form: str, shape: tuple[int, ...], logits: bool, kind: str, weights: Any
    ) -> None:
        y_pred, y = data_of(form, shape, logits)
        if kind == "bool" and form == "sparse":
            y = y % 2
        op = op_of(form=form, from_logits=logits, class_weights=weights)
        y_pred = tf.constant(y_pred, tf.float32)
        one, two = (op.forward([y_pred, truth], {}) for truth in (tf.cast(y, kind), tf.constant(y)))
        np.testing.assert_array_equal(one, two)

    @pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
    @pytest.mark.parametrize("weights", [None, WEIGHTS])
    def test_any_type_of_predictions(
        self, form: str, shape: tuple[int, ...], logits: bool, kind: str, weights: Any
    ) -> None:
        y_pred, y = data_of(form, shape, logits)
        y_pred = tf.cast(y_pred, kind)
        for average in (True, False):
            op = op_of(form=form, from_logits=logits, class_weights=weights, average_loss=average)
            loss = op.forward([y_pred, tf.constant(y)], {})
            assert loss.dtype == y_pred.dtype
            wanted = expected(form, tf.cast(y_pred, "float64").numpy(), y, logits, weights)
            rounding = {"float16": 4e-3, "bfloat16": 4e-2, "float64": 1e-6}[kind]
            np.testing.assert_allclose(
                tf.cast(loss, "float64"),
                wanted.mean() if average else wanted,
                rtol=rounding,
                atol=rounding / 10,
            )

    def test_gradients(self, form: str, shape: tuple[int, ...], logits: bool) -> None:
        """Against differences of what numpy computes."""
        y_pred, y = data_of(form, shape, logits)
        tensor = tf.constant(y_pred, tf.float64)
        for weights in (None, WEIGHTS):
            op = op_of(form=form, from_logits=logits, class_weights=weights)
            with tf.GradientTape() as tape:
                tape.watch(tensor)
                loss = op.forward([tensor, tf.constant(y)], {})
            gradient = tape.gradient(loss, tensor).numpy()
            assert gradient.shape == y_pred.shape
            source = np.random.default_rng(1)
            direction = source.standard_normal(shape)
            if not logits and form != "binary":
                # Keras scales probabilities so that they add up to 1
                direction -= direction.mean(axis=-1, keepdims=True)
            step = 1e-6 * direction
            up, down = (
                expected(form, y_pred + sign * step, y, logits, weights).mean() for sign in (1, -1)
            )
            assert (gradient * direction).sum() == pytest.approx((up - down) / 2e-6, rel=1e-4)


class TestForms:
    @pytest.mark.parametrize(
        ("pred", "true", "form"),
        [
            ((4, 3), (4, 3), "categorical"),
            ((4, 3), (4,), "sparse"),
            ((4, 3), (4, 1), "sparse"),
            ((4, 1), (4, 1), "binary"),
            ((4, 1), (4,), "binary"),
            ((4,), (4,), "binary"),
            ((4, 2, 3), (4, 2, 3), "binary"),
        ],
    )
    def test_are_seen_from_shapes(self, pred: Any, true: Any, form: str) -> None:
        source = np.random.default_rng(0)
        y_pred = tf.constant(source.random(pred) * 0.9 + 0.05, tf.float32)
        y = np.zeros(true, int)
        if form == "categorical":
            y[:, 1] = 1
        one = op_of().forward([y_pred, tf.constant(y)], {})
        two = op_of(form=form).forward([y_pred, tf.constant(y)], {})
        np.testing.assert_array_equal(one, two)

    @pytest.mark.parametrize("shape", [(4, 1), (2, 3, 1)])
    def test_indices_with_an_axis_of_their_own(self, shape: Any) -> None:
        y_pred, y = data_of("sparse", (*shape[:-1], 3), True)
        op = op_of(form="sparse", from_logits=True, class_weights=WEIGHTS, average_loss=False)
        y_pred = tf.constant(y_pred)
        one = op.forward([y_pred, tf.constant(y)], {})
        two = op.forward([y_pred, tf.constant(y.reshape(shape))], {})
        np.testing.assert_array_equal(tf.reshape(one, [-1]), tf.reshape(two, [-1]))

    def test_weights_of_large_classes(self) -> None:
        """An index that the truth's type cannot hold is that of no class there is."""
        y_pred, y = tf.zeros((2, 50)), tf.constant([44, 3], tf.uint8)
        op = op_of(form="sparse", from_logits=True, class_weights={300: 9.0}, average_loss=False)
        np.testing.assert_allclose(op.forward([y_pred, y], {}), np.log(50) * np.ones(2), rtol=1e-6)

    @pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
    def test_predictions_that_are_certain(self, kind: str) -> None:
        for form, y_pred, y in (
            ("binary", [[1.0], [0.0], [1.0], [0.0]], [[1], [0], [0], [1]]),
            ("sparse", [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [0, 1, 1]),
            ("categorical", [[1.0, 0.0], [1.0, 0.0]], [[1, 0], [0, 1]]),
        ):
            op = op_of(form=form, average_loss=False)
            loss = op.forward([tf.constant(y_pred, kind), tf.constant(y)], {})
            loss = tf.cast(loss, "float32").numpy()
            assert np.isfinite(loss).all(), form
            assert (loss[0] < 0.01).all()
            assert loss[-1] > 10


class TestStatic:
    """In a graph of any batch size, after models that end in an activation."""

    @pytest.mark.parametrize("saturated", [False, True])
    @pytest.mark.parametrize("form", ["sparse", "categorical"])
    def test_after_a_softmax(self, form: str, saturated: bool) -> None:
        model = build(softmax, "sgd")
        op = CrossEntropy(("y", "t"), "loss", form=form, average_loss=False)
        network = TFNetwork([ModelOp(model, "x", "y"), op])
        logits_layer = model.layers[-1]
        with network(mode="eval", epoch=1):
            for size in (8, 8, 5, 1):
                batch = batches(1, size=size)[0]
                if saturated:
                    batch["x"] *= 100
                if form == "categorical":
                    batch["t"] = tf.one_hot(batch["t"], 3)
                result = network.run_step(batch)
                hidden = model.layers[0](batch["x"])
                scores = hidden @ tf.convert_to_tensor(logits_layer.kernel) + logits_layer.bias
                truth = batch["t"].numpy()
                truth = truth.argmax(-1) if form == "categorical" else truth
                wanted = tf.nn.sparse_softmax_cross_entropy_with_logits(truth, scores)
                # not clipped, as the probabilities alone would have to be
                np.testing.assert_allclose(result["loss"], wanted, rtol=1e-4, atol=1e-5)
        assert len(network.traces) == 2  # one for the first size, and one for all others

    def test_after_a_sigmoid(self) -> None:
        def make() -> Any:
            return keras.Sequential([layers.Input((6,)), layers.Dense(1, activation="sigmoid")])

        model = build(make, "sgd")
        op = CrossEntropy(("y", "t"), "loss", average_loss=False, class_weights={1: 2.0})
        network = TFNetwork([ModelOp(model, "x", "y"), op])
        with network(mode="eval", epoch=1):
            for size in (8, 3):
                batch = batches(1, size=size)[0]
                batch = {"x": 100 * batch["x"], "t": batch["t"] % 2}
                loss = network.run_step(batch)["loss"]
                scores = batch["x"] @ tf.convert_to_tensor(model.layers[-1].kernel)
                truth = tf.cast(batch["t"], "float32")
                wanted = tf.nn.sigmoid_cross_entropy_with_logits(truth[:, None], scores)[:, 0]
                np.testing.assert_allclose(loss, wanted * (1 + truth), rtol=1e-4, atol=1e-5)
        assert len(network.traces) == 2  # one for the first size, and one for all others

    def test_training_from_probabilities(self) -> None:
        model, twin = twins(softmax)
        model = build(lambda: model, lambda: BY_NAME.SGD(0.1))
        data = batches(3)
        ops = supervised(model)
        ops[1] = CrossEntropy(("y", "t"), "loss")
        train(TFNetwork(ops), data)
        compare = keras.losses.sparse_categorical_crossentropy
        loop(twin, BY_NAME.SGD(0.1), data, lambda y, batch: compare(batch["t"], y))
        assert_close(model, twin, 1e-4)

    @pytest.mark.parametrize("form", list(SHAPES))
    @pytest.mark.parametrize("weights", [None, WEIGHTS])
    def test_of_any_batch_size(self, form: str, weights: Any) -> None:
        op = CrossEntropy(("p", "t"), "loss", form=form, class_weights=weights)
        mean = MeanSquaredError(("p", "p2"), "mse")
        network = TFNetwork([op, mean])
        with network(mode="eval", epoch=1):
            for size in (6, 4, 6):
                y_pred, y = data_of(form, (size, 3), False, seed=size)
                p = tf.constant(y_pred, tf.float32)
                result = network.run_step({"p": p, "t": tf.constant(y), "p2": 2 * p})
                wanted = expected(form, y_pred, y, False, weights).mean()
                np.testing.assert_allclose(result["loss"], wanted, rtol=1e-5)
                np.testing.assert_allclose(result["mse"], (y_pred**2).mean(), rtol=1e-5)
        assert len(network.traces) == 2  # one for the first size, and one for all others


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", [*SHAPES, "hinge"])
def test_means_of_many_halves(form: str, kind: str, static: bool) -> None:
    """As near as the type can tell, however many there are, and so are their gradients."""
    # too many for a sum of halves, for a count, and for both
    for points in (400, 50_000, 66_000, 100_000):
        y_pred, y = data_of("binary" if form == "hinge" else form, (points, 4), True)
        y_pred = tf.cast(y_pred, kind)
        op: Any = Hinge(("p", "t"), "loss")
        if form != "hinge":
            op = CrossEntropy(("p", "t"), "loss", form=form, from_logits=True)
        op.build("tf")

        truth = tf.constant(y)

        def loss_of(y_pred: Any, op: Any = op, truth: Any = truth) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(y_pred)
                loss = op.forward([y_pred, truth], {})
            return loss, tape.gradient(loss, y_pred)

        loss, slopes = tf.function(partial(loss_of, y_pred))() if static else loss_of(y_pred)
        wide, wide_slopes = loss_of(tf.cast(y_pred, "float64"))
        spacing = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[kind]
        assert float(loss) == pytest.approx(float(wide), rel=3 * spacing)
        # the least that float16 can tell from nothing is as large as a sample's share of many
        near = 4 * spacing * float(tf.reduce_max(tf.abs(wide_slopes))) + 2.0**-23
        np.testing.assert_allclose(tf.cast(slopes, "float64"), wide_slopes, atol=near)


class TestMeanSquaredError:
    @pytest.mark.parametrize("shape", [(6,), (6, 1), (4, 3), (2, 3, 4)])
    @pytest.mark.parametrize("average", [True, False])
    @pytest.mark.parametrize("truth", ["float32", "int64", "float64", "uint8"])
    @pytest.mark.parametrize("built", [True, False])
    def test_against_numpy(self, shape: Any, average: bool, truth: str, built: bool) -> None:
        source = np.random.default_rng(0)
        y_pred, y = source.standard_normal(shape), source.integers(0, 5, shape)
        op = MeanSquaredError(("y_pred", "y"), "loss", average_loss=average)
        if built:
            op.build("tf")
        loss = op.forward([tf.constant(y_pred, tf.float32), tf.cast(y, truth)], {})
        wanted = numpy_losses.mean_squared_error(y_pred, y)
        assert loss.dtype == tf.float32
        assert tuple(loss.shape) == (() if average else wanted.shape)
        np.testing.assert_allclose(loss, wanted.mean() if average else wanted, rtol=1e-5)

    @pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
    def test_types(self, kind: str) -> None:
        y_pred, y = tf.constant([[1.0, 2.0], [0.5, 0.0]], kind), tf.constant([[0, 2], [1, 2]])
        loss = MeanSquaredError(("p", "t"), "l").forward([y_pred, y], {})
        assert loss.dtype == y_pred.dtype
        assert float(loss) == 1.3125


class TestAgainstFastEstimator:
    """Equal to the bit to what it computes, wherever it computes anything."""

    @pytest.fixture
    def theirs(self) -> Any:
        return pytest.importorskip("fastestimator.backend")

    @pytest.mark.parametrize(("form", "shape"), FORMS)
    @pytest.mark.parametrize("weights", [None, WEIGHTS])
    def test_cross_entropy(self, theirs: Any, form: str, shape: Any, weights: Any) -> None:
        if form == "binary" and (len(shape) == 1 or (weights and shape[-1] > 1)):
            pytest.skip("FastEstimator fails on these")
        name = "sparse_categorical" if form == "sparse" else form
        name += "_crossentropy"
        table = None
        if weights:
            pairs = tf.lookup.KeyValueTensorInitializer(list(weights), list(weights.values()))
            table = tf.lookup.StaticHashTable(pairs, default_value=1.0)
        for logits in (False, True):
            for average in (False, True):
                for kind in ("float32", "float16") if not weights else ("float32",):
                    for truth in ("int64", "int32", "uint8", "float32"):
                        y_pred, y = data_of(form, shape, logits)
                        data = tf.cast(y_pred, kind), tf.cast(y, truth)
                        their = getattr(theirs, name)(*data, logits, average, table)
                        own = getattr(fastnet.backend, name)(*data, logits, average, weights)
                        assert own.dtype == their.dtype
                        np.testing.assert_array_equal(own, their)

    def test_smoothed_truth(self, theirs: Any) -> None:
        """Truth between the classes weighs as the lower one."""
        pairs = tf.lookup.KeyValueTensorInitializer([0, 1], [0.5, 2.0])
        table = tf.lookup.StaticHashTable(pairs, default_value=1.0)
        y_pred, y = tf.constant([[0.3], [0.8], [0.6]]), tf.constant([[0.1], [0.9], [1.0]])
        their = theirs.binary_crossentropy(y_pred, y, False, False, table)
        own = fastnet.backend.binary_crossentropy(y_pred, y, False, False, {0: 0.5, 1: 2.0})
        np.testing.assert_array_equal(own, their)

    @pytest.mark.parametrize("shape", [(6,), (6, 1), (4, 3), (2, 3, 4)])
    @pytest.mark.parametrize("kind", ["float32", "float16", "float64"])
    def test_mean_squared_error(self, theirs: Any, shape: Any, kind: str) -> None:
        source = np.random.default_rng(0)
        y_pred, y = tf.cast(source.random(shape), kind), tf.constant(source.integers(0, 3, shape))
        own = fastnet.backend.mean_squared_error(y, y_pred)
        np.testing.assert_array_equal(own, theirs.mean_squared_error(y, y_pred))


class TestErrors:
    @pytest.mark.parametrize("label", [3, -1])
    def test_a_class_that_there_is_not(self, label: int) -> None:
        op = op_of(form="sparse", from_logits=True)
        with pytest.raises(tf.errors.InvalidArgumentError, match="label value"):
            op.forward([tf.zeros((2, 3)), tf.constant([0, label])], {})

    @pytest.mark.parametrize("label", [np.nan, np.inf, -np.inf, 1e30])
    @pytest.mark.parametrize("eager", [False, True])
    @pytest.mark.parametrize("weights", [None, WEIGHTS])
    def test_a_label_that_is_no_number(self, label: float, eager: bool, weights: Any) -> None:
        op = CrossEntropy(("p", "t"), "loss", from_logits=True, class_weights=weights)
        batch = {"p": tf.zeros((3, 3)), "t": tf.constant([0, label, 2.0], tf.float32)}
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            infer(TFNetwork([op]), batch, "eval", eager)
        notes = "\n".join(getattr(caught.value, "__notes__", [str(caught.value)]))
        assert "Raised by CrossEntropy (op 0, inputs ['p', 't'], outputs ['loss'])." in notes

    @pytest.mark.parametrize("eager", [False, True])
    def test_truth_of_another_length(self, eager: bool) -> None:
        network = TFNetwork([CrossEntropy(("p", "t"), "loss", from_logits=True)])
        batch = {"p": tf.zeros((4, 3)), "t": tf.zeros((5,), tf.int64)}
        with pytest.raises(Exception, match=r"(?s)shape|dimension") as caught:
            infer(network, batch, "eval", eager)
        notes = "\n".join(getattr(caught.value, "__notes__", [str(caught.value)]))
        assert "Raised by CrossEntropy (op 0, inputs ['p', 't'], outputs ['loss'])." in notes
