"""Gradients of TensorFlow tensors, and the updates they make, against sums done by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet.backend as backend
from tests.network.keras_models import (
    keras,
)

pytestmark = pytest.mark.tf


class TestGetGradient:
    def test_of_one_or_several(self) -> None:
        x, z = tf.Variable([1.0, 2.0, 3.0]), tf.Variable(2.0)
        with tf.GradientTape(persistent=True) as tape:
            y = x * x * z
            one = backend.get_gradient(y, x, tape=tape)
            several = backend.get_gradient(y, [x, z], tape=tape)
        assert one.numpy().tolist() == [4, 8, 12]
        assert [gradient.numpy().tolist() for gradient in several] == [[4, 8, 12], 14]

    def test_higher_order(self) -> None:
        x = tf.Variable([1.0, 2.0])
        with tf.GradientTape(persistent=True) as tape:
            y = x**3
            plain = backend.get_gradient(y, x, tape=tape)
            assert backend.get_gradient(plain, x, tape=tape) is None
            kept = backend.get_gradient(y, x, higher_order=True, tape=tape)
            second = backend.get_gradient(kept, x, tape=tape)
        assert plain.numpy().tolist() == kept.numpy().tolist() == [3, 12]
        assert second.numpy().tolist() == [6, 12]

    def test_of_what_has_no_part(self) -> None:
        """With a tape that records no more, as in a loop written by hand."""
        x, other = tf.Variable(1.0), tf.Variable(1.0)
        with tf.GradientTape(persistent=True) as tape:
            y = x * 2
        assert backend.get_gradient(y, other, tape=tape) is None
        one, two = backend.get_gradient(y, [other, x], tape=tape)
        assert (one, float(two)) == (None, 2)

    def test_without_a_tape(self) -> None:
        with pytest.raises(ValueError, match=r"TensorFlow.*'tape'"):
            backend.get_gradient(tf.constant(1.0), tf.constant(1.0))


class Asking(keras.Model):
    def call(self, a: Any, b: Any = None, training: bool = False) -> Any:
        total = a if b is None else a + b
        return total * (2.0 if training else 1.0)


class NotAsking(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.drop = keras.layers.Dropout(0.5)

    def call(self, x: Any) -> Any:
        return self.drop(x)


class TestFeedForward:
    @pytest.mark.parametrize("training", [True, False])
    def test_inputs_and_mode(self, training: bool) -> None:
        model, factor = Asking(), 2 if training else 1
        x = tf.constant(1.0)
        assert float(backend.feed_forward(model, x, training=training)) == factor
        assert float(backend.feed_forward(model, x, 2 * x, training=training)) == 3 * factor
        y = backend.feed_forward(model, np.array(1.0, "float32"), training=training)
        assert float(y) == factor

    @pytest.mark.parametrize("training", [True, False])
    def test_a_model_that_does_not_ask(self, training: bool) -> None:
        y = backend.feed_forward(NotAsking(), tf.ones((1, 64)), training=training)
        assert (len(np.unique(y)) == 2) is training

    def test_of_no_framework(self) -> None:
        with pytest.raises(ValueError, match="Unrecognized model instance object"):
            backend.feed_forward(object(), tf.ones(1))
