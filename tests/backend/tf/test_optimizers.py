"""Learning rates of Keras optimizers, read and set while graphs stay as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.backend import get_lr, set_lr
from tests.network.keras_models import (
    KINDS,
    batches,
    classify,
    keras,
    line,
    mlp,
    supervised,
    weights,
)

pytestmark = pytest.mark.tf


def build(optimizer: Any, make: Any = line, **settings: Any) -> Any:
    return fastnet.build(make, optimizer, model_name="net", **settings)


def update(model: Any, batch: Any) -> list[Any]:
    """Return the gradients of a batch, by hand."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(classify(model(batch["x"], training=True), batch))
    return [each.numpy() for each in tape.gradient(loss, model.trainable_variables)]


class TestSet:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("eager", [False, True], ids=["static", "eager"])
    def test_counts_from_the_next_step_on(self, kind: Any, eager: bool) -> None:
        model = build(lambda: kind.SGD(0.1), mlp)
        network = fastnet.Network(supervised(model))
        data = batches(4)
        with network(mode="train", epoch=1, eager=eager):
            for batch, rate in zip(data, (0.1, 0.5, 0.0, 2.0), strict=True):
                set_lr(model, rate)
                before, gradients = weights(model), update(model, batch)
                network.run_step(batch)
                for old, gradient, new in zip(before, gradients, weights(model), strict=True):
                    np.testing.assert_allclose(new, old - rate * gradient, rtol=1e-5, atol=1e-6)
        assert len(network.traces) == (0 if eager else 1)

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_schedule_stays(self, kind: Any) -> None:
        decay = keras.optimizers.schedules.ExponentialDecay(0.4, 1, 0.5)
        model = build(lambda: kind.SGD(decay))
        with pytest.raises(
            ValueError,
            match=r"'net' cannot be set.*SGD.*with a number",
        ):
            set_lr(model, 0.1)
        assert get_lr(model) == pytest.approx(0.4)


class TestWeightDecay:
    def make(self, **settings: Any) -> Any:
        return build(lambda: keras.optimizers.AdamW(0.5, weight_decay=0.25), **settings)

    @pytest.mark.parametrize("mixed", [False, True])
    def test_changes_with_the_rate(self, mixed: bool) -> None:
        model = self.make(mixed_precision=mixed)
        set_lr(model, 0.25)
        optimizer = getattr(model.current_optimizer, "inner_optimizer", model.current_optimizer)
        assert float(optimizer.weight_decay) == 0.125
        set_lr(model, 0.125, weight_decay=0.5)
        assert float(optimizer.weight_decay) == 0.5
        assert get_lr(model) == 0.125

    @pytest.mark.parametrize("kind", KINDS)
    def test_of_an_optimizer_without(self, kind: Any) -> None:
        model = build(lambda: kind.Adam(0.5))
        with pytest.raises(
            ValueError,
            match="A weight decay was given for model 'net', but its optimizer, Adam, has",
        ):
            set_lr(model, 0.1, weight_decay=0.1)
        assert get_lr(model) == 0.5
