"""What of a Keras model is trained, against what Keras says."""

from __future__ import annotations

from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from fastnet.backend.tf.setup import prepare_optimizer
from fastnet.backend.tf.update import Trained
from tests.network.keras_models import BY_NAME, KINDS, keras, mlp

pytestmark = pytest.mark.tf

ALL_KINDS = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.split(".")[-1])


def ready(optimizer: Any, model: Any) -> Any:
    prepare_optimizer(optimizer, model)
    return optimizer


def ids(variables: Any) -> list[int]:
    return [id(one) for one in variables]


class TestWhatIsTrained:
    @ALL_KINDS
    def test_what_keras_says(self, kind: Any) -> None:
        model = mlp()
        trained = Trained(model, ready(kind.SGD(0.1), model))
        assert ids(trained.variables) == ids(model.trainable_variables)
        assert trained.replicas == 1

    @ALL_KINDS
    @pytest.mark.parametrize("whole", [False, True])
    def test_layers_that_are_frozen_meanwhile(self, kind: Any, whole: bool) -> None:
        model = mlp()
        optimizer = ready(kind.SGD(0.1), model)
        trained = Trained(model, optimizer)
        assert trained.holds(optimizer)
        frozen = model if whole else model.layers[0]
        frozen.trainable = False
        assert not trained.holds(optimizer)
        now = Trained(model, optimizer).variables
        assert ids(now) == ids(model.trainable_variables)
        assert len(now) == (0 if whole else 2)
        frozen.trainable = True
        assert trained.holds(optimizer)

    @ALL_KINDS
    def test_a_layer_that_is_added_meanwhile(self, kind: Any) -> None:
        model = mlp()
        optimizer = ready(kind.SGD(0.1), model)
        trained = Trained(model, optimizer)
        model.add(keras.layers.Dense(2))
        assert not trained.holds(optimizer)
        assert len(Trained(model, optimizer).variables) == 6

    def test_a_layer_that_gets_its_variables_meanwhile(self) -> None:
        class Twofold(keras.Model):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = keras.layers.Dense(3), keras.layers.Dense(3)

            def call(self, x: Any, both: bool = False) -> Any:
                return self.second(self.first(x)) if both else self.first(x)

        model = Twofold()
        model(tf.ones((1, 2)))
        optimizer = ready(BY_NAME.SGD(0.1), model)
        trained = Trained(model, optimizer)
        assert len(trained.variables) == 2
        assert trained.holds(optimizer)
        model(tf.ones((1, 2)), both=True)
        assert not trained.holds(optimizer)
        assert len(Trained(model, optimizer).variables) == 4
