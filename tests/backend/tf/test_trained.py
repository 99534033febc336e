"""What of a Keras model is trained, against what Keras says, and updates beside its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fastnet.backend.tf.setup import prepare_optimizer
from fastnet.backend.tf.trained import Trained
from tests.network.keras_models import BY_NAME, KERAS_3, KINDS, keras, mlp, same_weights, twins

pytestmark = pytest.mark.tf

ALL_KINDS = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.split(".")[-1])
KERAS_3_ONLY = pytest.mark.skipif(not KERAS_3, reason="Keras 2 has one way to an update")


def ready(optimizer: Any, model: Any) -> Any:
    prepare_optimizer(optimizer, model)
    return optimizer


def ids(variables: Any) -> list[int]:
    return [id(one) for one in variables]


def gradients_of(model: Any) -> list[Any]:
    numbers = np.random.default_rng(0)
    return [
        tf.constant(numbers.standard_normal(one.shape), "float32")
        for one in model.trainable_variables
    ]


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

    def test_another_optimizer(self) -> None:
        model = mlp()
        optimizer, other = ready(BY_NAME.SGD(0.1), model), ready(BY_NAME.SGD(0.1), model)
        assert not Trained(model, optimizer).holds(other)

    def test_another_thread(self) -> None:
        """It may be a replica's, of which there are several."""
        model = mlp()
        optimizer = ready(BY_NAME.SGD(0.1), model)
        trained = Trained(model, optimizer)
        with ThreadPoolExecutor(1) as pool:
            assert not pool.submit(trained.holds, optimizer).result()
        assert trained.holds(optimizer)

    @ALL_KINDS
    def test_a_layer_that_is_added_meanwhile(self, kind: Any) -> None:
        model = mlp()
        optimizer = ready(kind.SGD(0.1), model)
        trained = Trained(model, optimizer)
        model.add(keras.layers.Dense(2))
        assert not trained.holds(optimizer)
        assert len(Trained(model, optimizer).variables) == 6

    def test_a_class_that_says_itself_what_is_trained(self) -> None:
        class Head(keras.Sequential):  # type: ignore[misc]
            @property
            def trainable_variables(self) -> list[Any]:
                return list(self.layers[-1].trainable_variables)

        model = Head([keras.layers.Input((6,)), keras.layers.Dense(5), keras.layers.Dense(3)])
        optimizer = ready(BY_NAME.SGD(0.1), model)
        trained = Trained(model, optimizer)
        assert ids(trained.variables) == ids(model.layers[-1].trainable_variables)
        model.layers[-1].trainable = False
        assert not trained.holds(optimizer)

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

    def test_sources_are_what_a_tape_knows(self) -> None:
        """A gradient by them is the one by the variables themselves."""
        model = mlp()
        trained = Trained(model, ready(BY_NAME.SGD(0.1), model))
        assert all(isinstance(one, tf.Variable) for one in trained.sources)
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(model(tf.ones((4, 6))) ** 2)
        found = tape.gradient(loss, trained.sources)
        expected = tape.gradient(loss, model.trainable_variables)
        assert len(found) == 4
        for own, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(own, wanted)


class TestUpdates:
    @ALL_KINDS
    @pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop"])
    @pytest.mark.parametrize("frozen", [False, True])
    def test_as_the_optimizers_own(self, kind: Any, name: str, frozen: bool) -> None:
        model, twin = twins(mlp)
        optimizer, other = getattr(kind, name)(0.1), getattr(kind, name)(0.1)
        ready(optimizer, model), ready(other, twin)
        model.layers[0].trainable = twin.layers[0].trainable = not frozen
        trained = Trained(model, optimizer)
        for _ in range(3):
            trained.update(gradients_of(model))
            other.apply_gradients(zip(gradients_of(twin), twin.trainable_variables, strict=True))
            assert same_weights(model, twin)
        assert int(optimizer.iterations) == 3

    def test_none_for_some(self) -> None:
        model, twin = twins(mlp)
        optimizer, other = ready(BY_NAME.SGD(0.1), model), ready(BY_NAME.SGD(0.1), twin)
        gradients = [None, *gradients_of(model)[1:]]
        Trained(model, optimizer).update(gradients)
        other.apply_gradients(zip(gradients, twin.trainable_variables, strict=True))
        assert same_weights(model, twin)

    @KERAS_3_ONLY
    def test_an_optimizer_for_more_than_is_trained(self) -> None:
        """It was made for a frozen layer's variables too, which it must not take for granted."""
        model, twin = twins(mlp)
        for each in (model, twin):
            each.layers[0].trainable = False
        optimizer, other = BY_NAME.SGD(0.1), BY_NAME.SGD(0.1)
        optimizer.build(model.variables)
        other.build(twin.trainable_variables)
        Trained(model, optimizer).update(gradients_of(model))
        other.apply(gradients_of(twin), twin.trainable_variables)
        assert same_weights(model, twin)

    @ALL_KINDS
    def test_a_class_with_a_way_of_its_own(self, kind: Any) -> None:
        seen: list[int] = []

        class Noting(kind.SGD):  # type: ignore[misc]
            def apply_gradients(self, pairs: Any, *args: Any, **kwargs: Any) -> Any:
                pairs = list(pairs)
                seen.append(len(pairs))
                return super().apply_gradients(pairs, *args, **kwargs)

        model = mlp()
        Trained(model, ready(Noting(0.1), model)).update(gradients_of(model))
        assert seen == [4]

    @KERAS_3_ONLY
    def test_a_class_with_an_apply_of_its_own(self) -> None:
        seen: list[int] = []

        class Noting(BY_NAME.SGD):  # type: ignore[misc]
            def apply(self, gradients: Any, variables: Any = None) -> None:
                seen.append(len(variables))
                super().apply(gradients, variables)

        model = mlp()
        Trained(model, ready(Noting(0.1), model)).update(gradients_of(model))
        assert seen == [4]

    @ALL_KINDS
    def test_an_optimizer_that_was_patched(self, kind: Any) -> None:
        model = mlp()
        optimizer = ready(kind.SGD(0.1), model)
        own, seen = optimizer.apply_gradients, list[int]()

        def note(pairs: Any) -> Any:
            pairs = list(pairs)
            seen.append(len(pairs))
            return own(pairs)

        object.__setattr__(optimizer, "apply_gradients", note)
        Trained(model, optimizer).update(gradients_of(model))
        assert seen == [4]

    @ALL_KINDS
    def test_something_around_an_optimizer(self, kind: Any) -> None:
        class Around:
            def __init__(self, inner: Any) -> None:
                self.inner = inner
                self.updates = 0

            def __getattr__(self, name: str) -> Any:
                return getattr(self.inner, name)

            def apply_gradients(self, pairs: Any) -> Any:
                self.updates += 1
                return self.inner.apply_gradients(pairs)

        model, twin = twins(mlp)
        around, other = (
            Around(ready(kind.SGD(0.1), model)),
            ready(kind.SGD(0.1), twin),
        )
        Trained(model, around).update(gradients_of(model))
        other.apply_gradients(zip(gradients_of(twin), twin.trainable_variables, strict=True))
        assert around.updates == 1
        assert same_weights(model, twin)
