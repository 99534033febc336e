"""Cross entropy along a given axis, with labels left out and smoothed, against Keras's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fastnet.network import TFNetwork
from fastnet.op.tensorop.loss import CrossEntropy
from tests.network.keras_models import infer, keras
from tests.op.tensorop.loss import numpy_losses

pytestmark = pytest.mark.tf

WEIGHTS: dict[int, float] = {0: 0.5, 2: 3.0}
# predictions, and where their classes are
SHAPES = [((6, 4), None), ((3, 5, 4), -1), ((2, 4, 3, 5), 1)]


def data_of(shape: tuple[int, ...], axis: int | None, kind: str) -> Any:
    """Make scores and class indices, and the scores with their classes last."""
    source = np.random.default_rng(len(shape))
    scores = source.standard_normal(shape).astype(kind)
    moved = np.moveaxis(scores, -1 if axis is None else axis, -1)
    return scores, source.integers(0, moved.shape[-1], moved.shape[:-1]), moved


def softmax(scores: Any, axis: int) -> Any:
    powers = np.exp(scores - scores.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def weights_of(classes: Any) -> Any:
    return np.vectorize(lambda one: WEIGHTS.get(int(one), 1.0))(classes)


def loss_of(op: CrossEntropy, pred: Any, true: Any, eager: bool) -> Any:
    result = infer(TFNetwork([op]), {"p": tf.constant(pred), "t": tf.constant(true)}, "eval", eager)
    return result["loss"]


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("logits", [True, False])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
class TestAgainstKeras:
    @pytest.mark.parametrize("ignored", [None, 1, -1])
    def test_sparse(
        self,
        shape: Any,
        axis: int | None,
        logits: bool,
        average: bool,
        weights: Any,
        kind: str,
        eager: bool,
        ignored: int | None,
    ) -> None:
        scores, y, moved = data_of(shape, axis, kind)
        if ignored == -1:
            y[0] = -1
        if not logits:
            scores, moved = softmax(scores, axis or -1), softmax(moved, -1)
        op = CrossEntropy(
            ("p", "t"),
            "loss",
            form="sparse",
            from_logits=logits,
            average_loss=average,
            class_weights=weights,
            axis=axis,
            ignore_index=ignored,
        )
        loss = loss_of(op, scores, y, eager)
        theirs = keras.losses.SparseCategoricalCrossentropy
        if average and not weights:
            wanted = theirs(from_logits=logits, ignore_class=ignored)(y, moved)
        else:
            compare = theirs(from_logits=logits, ignore_class=ignored, reduction="none")
            wanted = np.array(compare(y, moved))
            if weights:
                wanted = wanted * weights_of(y)
            if average:
                wanted = wanted.sum() / (y != (99 if ignored is None else ignored)).sum()
        assert loss.dtype == kind
        np.testing.assert_allclose(loss, wanted, rtol=1e-5, atol=1e-6)

    def test_smoothed(
        self,
        shape: Any,
        axis: int | None,
        logits: bool,
        average: bool,
        weights: Any,
        kind: str,
        eager: bool,
    ) -> None:
        scores, y, moved = data_of(shape, axis, kind)
        if not logits:
            scores, moved = softmax(scores, axis or -1), softmax(moved, -1)
        one_hot = np.eye(4, dtype=kind)[y]
        compare = keras.losses.categorical_crossentropy
        wanted = np.array(compare(one_hot, moved, from_logits=logits, label_smoothing=0.1))
        if weights:
            wanted = wanted * weights_of(y)
        wanted = wanted.mean() if average else wanted
        along = np.moveaxis(one_hot, -1, -1 if axis is None else axis)
        for form, truth in (("sparse", y), ("categorical", along)):
            op = CrossEntropy(
                ("p", "t"),
                "loss",
                form=form if axis is None else None,
                from_logits=logits,
                average_loss=average,
                class_weights=weights,
                axis=axis,
                label_smoothing=0.1,
            )
            loss = loss_of(op, scores, truth, eager)
            np.testing.assert_allclose(loss, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("logits", [True, False])
def test_smoothed_binary(logits: bool) -> None:
    scores = np.linspace(-3, 3, 12).reshape(6, 2).astype("float32")
    scores = scores if logits else numpy_losses.sigmoid(scores)
    y = np.arange(12).reshape(6, 2) % 2
    op = CrossEntropy(("p", "t"), "loss", form="binary", from_logits=logits, label_smoothing=0.2)
    wanted = keras.losses.BinaryCrossentropy(from_logits=logits, label_smoothing=0.2)(y, scores)
    np.testing.assert_allclose(loss_of(op, scores, y, False), wanted, rtol=1e-5)


def test_all_left_out() -> None:
    """Keras's mean of none."""
    op = CrossEntropy(("p", "t"), "loss", from_logits=True, ignore_index=-1)
    scores, y = np.zeros((3, 4), "float32"), np.full(3, -1)
    assert loss_of(op, scores, y, True) == 0


@pytest.mark.parametrize("label", [-2, 4])
@pytest.mark.parametrize("eager", [False, True])
def test_another_index_that_is_no_class(label: int, eager: bool) -> None:
    op = CrossEntropy(
        ("p", "t"), "loss", from_logits=True, ignore_index=-1, label_smoothing=0.1, axis=-1
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="label value"):
        loss_of(op, np.zeros((3, 4), "float32"), np.array([0, label, -1]), eager)


@pytest.mark.parametrize("eager", [False, True])
def test_gradients_of_those_left_out(eager: bool) -> None:
    scores, y, _ = data_of((3, 5, 4), -1, "float64")
    y[1] = -1
    op = CrossEntropy(("p", "t"), "l", from_logits=True, axis=-1, ignore_index=-1)
    op.build("tf")
    with tf.GradientTape() as tape:
        tensor = tf.Variable(scores)
        call = op.forward if eager else tf.function(op.forward, autograph=False)
        loss = call([tensor.read_value(), tf.constant(y)], {})
    slopes = tape.gradient(loss, tensor).numpy()
    wanted = (softmax(scores, -1) - np.eye(4)[y]) * (y >= 0)[..., None] / 10
    np.testing.assert_allclose(slopes, wanted, atol=1e-12)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(
    ("pred", "true", "axis", "form"),
    [
        ((2, 5, 4), (2, 5), None, "binary"),
        ((2, 5, 4), (2, 4), -1, "sparse"),
        ((2, 5, 4), (2, 5), 5, "sparse"),
    ],
)
def test_impossible_shapes(pred: Any, true: Any, axis: Any, form: str, eager: bool) -> None:
    op = CrossEntropy(("p", "t"), "loss", from_logits=True, axis=axis)
    op.build("tf")
    call = op.forward if eager else tf.function(op.forward, autograph=False)
    with pytest.raises(ValueError, match="CrossEntropy") as caught:
        call([tf.zeros(pred), tf.zeros(true, tf.int64)], {})
    for part in (pred, true, repr(form), f"axis={axis}"):
        assert str(part) in str(caught.value)
