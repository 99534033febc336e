"""Learning rates of Keras optimizers, read and set while graphs stay as they are."""

from __future__ import annotations

from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.backend import get_lr, set_lr
from tests.network.keras_models import (
    KINDS,
    keras,
    line,
)

pytestmark = pytest.mark.tf


def build(optimizer: Any, make: Any = line, **settings: Any) -> Any:
    return fastnet.build(make, optimizer, model_name="net", **settings)


class TestSet:
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
