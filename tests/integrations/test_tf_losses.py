"""Losses of TensorFlow tensors and their gradients, in every form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.integrations.sides import Sides
from tests.integrations.tf_sides import MARKS, agree, steps, tf

pytestmark = MARKS

WEIGHTS = {0: 2.0, 2: 0.25}


def predictions(*shape: int, logits: bool, classes: bool = True) -> Any:
    raw = tf.constant(np.random.default_rng(1).normal(size=shape), tf.float32)
    if logits:
        return raw
    return tf.nn.softmax(raw) if classes else tf.sigmoid(raw)


def labels(*shape: int, classes: int = 3, dtype: Any = tf.int64) -> Any:
    return tf.cast(np.random.default_rng(2).integers(0, classes, shape), dtype)


def loss_and_gradient(lib: Any, op: Any, y: Any, truth: Any, eager: bool = True) -> Any:
    """Run a loss in a network, as it stands there, and differentiate it."""

    class Watch(lib.op.tensorop.TensorOp):  # type: ignore[misc]
        def forward(self, data: Any, state: Any) -> Any:
            state["tape"].watch(data)
            return data

    class Slope(lib.op.tensorop.TensorOp):  # type: ignore[misc]
        def forward(self, data: Any, state: Any) -> Any:
            return state["tape"].gradient(*data)

        def fe_retain_graph(self, retain: bool | None = None) -> bool:
            return False  # so that gradients are taken down

    network = lib.network.TFNetwork([Watch("y", "y"), op, Slope(["loss", "y"], "slope")])
    (result,) = steps(network, [{"y": y, "truth": truth}], eager=eager)
    return result["loss"], result["slope"]


@pytest.mark.parametrize("class_weights", [None, WEIGHTS])
@pytest.mark.parametrize("from_logits", [True, False])
class TestCrossEntropy:
    def check(self, sides: Sides, cases: list[Any], **settings: Any) -> None:
        def program(lib: Any) -> Any:
            return [
                loss_and_gradient(
                    lib,
                    lib.op.tensorop.loss.CrossEntropy(
                        ("y", "truth"), "loss", form=form, **settings
                    ),
                    y,
                    truth,
                )
                for form, y, truth in cases
            ]

        agree(sides, program)

    @pytest.mark.parametrize(("average_loss", "dtype"), [(True, tf.int64), (False, tf.float32)])
    def test_binary(
        self, sides: Sides, dtype: Any, from_logits: bool, average_loss: bool, class_weights: Any
    ) -> None:
        def given(*shape: int) -> tuple[Any, Any]:
            y = predictions(*shape, logits=from_logits, classes=False)
            return y, labels(*shape, classes=2, dtype=dtype)

        flat, images = given(7, 1), given(7, 2, 3, 1)
        self.check(
            sides,
            [
                (None, *flat),
                ("binary", *flat),
                ("binary", flat[0], tf.reshape(flat[1], [7])),  # the truth lacks an axis
                ("binary", *images),
                (None, *images),
            ],
            from_logits=from_logits,
            average_loss=average_loss,
            class_weights=class_weights,
        )

    @pytest.mark.parametrize(("average_loss", "dtype"), [(True, tf.int64), (False, tf.float32)])
    def test_categorical(
        self, sides: Sides, dtype: Any, from_logits: bool, average_loss: bool, class_weights: Any
    ) -> None:
        flat, images = (
            (predictions(*shape, 3, logits=from_logits), tf.one_hot(labels(*shape), 3, dtype=dtype))
            for shape in ((7,), (4, 2, 2))
        )
        self.check(
            sides,
            [(None, *flat), ("categorical", *flat), ("categorical", *images)],
            from_logits=from_logits,
            average_loss=average_loss,
            class_weights=class_weights,
        )

    @pytest.mark.parametrize(("average_loss", "dtype"), [(True, tf.int64), (False, tf.uint8)])
    def test_sparse(
        self, sides: Sides, dtype: Any, from_logits: bool, average_loss: bool, class_weights: Any
    ) -> None:
        flat, column, images = (
            (predictions(*shape, 3, logits=from_logits), labels(*shape, dtype=dtype))
            for shape in ((7,), (7, 1), (4, 2, 2))
        )
        self.check(
            sides,
            [
                (None, *flat),
                ("sparse", *flat),
                (None, flat[0], column[1]),
                ("sparse", *images),
            ],
            from_logits=from_logits,
            average_loss=average_loss,
            class_weights=class_weights,
        )


@pytest.mark.parametrize("form", ["binary", "categorical", "sparse"])
def test_cross_entropy_in_a_graph(sides: Sides, form: str) -> None:
    """Weights of classes included: there they are a table, and here a choice."""
    y = predictions(7, 1 if form == "binary" else 3, logits=True)
    truth = {
        "binary": labels(7, 1, classes=2),
        "categorical": tf.one_hot(labels(7), 3),
        "sparse": labels(7),
    }[form]

    def program(lib: Any) -> Any:
        op = lib.op.tensorop.loss.CrossEntropy(
            ("y", "truth"), "loss", from_logits=True, form=form, class_weights=WEIGHTS
        )
        return loss_and_gradient(lib, op, y, truth, eager=False)

    agree(sides, program)


@pytest.mark.parametrize("average_loss", [True, False])
@pytest.mark.parametrize("shape", [(7,), (7, 1), (7, 3), (4, 3, 2)])
def test_mean_squared_error(sides: Sides, average_loss: bool, shape: Any) -> None:
    y, truth = predictions(*shape, logits=True), predictions(*shape, logits=True) * 0.5

    def program(lib: Any) -> Any:
        op = lib.op.tensorop.loss.MeanSquaredError(
            ("y", "truth"), "loss", average_loss=average_loss
        )
        return loss_and_gradient(lib, op, y, truth)

    agree(sides, program)
