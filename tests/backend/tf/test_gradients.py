"""Gradients of TensorFlow tensors, and the updates they make, against sums done by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet.backend as backend
from fastnet.backend.model_metadata import set_metadata
from fastnet.backend.tf.gradients import apply_gradients
from fastnet.backend.tf.setup import prepare_optimizer
from fastnet.network.build import build
from tests.network.keras_models import (
    BY_NAME,
    KERAS_3,
    KINDS,
    keras,
    line,
    mlp,
    same_weights,
    twins,
    weights,
)
from tests.network.programs import raising

pytestmark = pytest.mark.tf

ALL_KINDS = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.split(".")[-1])
KERAS_3_ONLY = pytest.mark.skipif(not KERAS_3, reason="Keras 2 has one way to an update")


def ones(model: Any) -> list[Any]:
    return [tf.ones(weight.shape) for weight in model.weights]


def ready(optimizer: Any, model: Any) -> Any:
    prepare_optimizer(optimizer, model)
    return optimizer


def gradients_of(model: Any) -> list[Any]:
    numbers = np.random.default_rng(0)
    return [
        tf.constant(numbers.standard_normal(one.shape), "float32")
        for one in model.trainable_variables
    ]


def update(model: Any, optimizer: Any, gradients: list[Any]) -> None:
    set_metadata(model, "current_optimizer", optimizer)
    apply_gradients(model, gradients, model.trainable_variables)


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
        with raising(
            ValueError,
            "A gradient in TensorFlow needs the tape that recorded its target, but got None. Pass "
            "state['tape'], which a network provides if any of its ops takes gradients.",
        ):
            backend.get_gradient(tf.constant(1.0), tf.constant(1.0))


class TestUpdateModel:
    @pytest.mark.parametrize("kind", KINDS)
    def test_at_once(self, kind: Any) -> None:
        model = build(line, lambda: kind.SGD(0.5))
        before = weights(model)
        backend.update_model(model, ones(model))
        for now, then in zip(weights(model), before, strict=True):
            np.testing.assert_allclose(now, then - 0.5, rtol=1e-6)

    def test_none_for_some(self) -> None:
        model = build(line, lambda: BY_NAME.SGD(0.5))
        before = weights(model)
        backend.update_model(model, [ones(model)[0], None])
        np.testing.assert_allclose(weights(model)[0], before[0] - 0.5, rtol=1e-6)
        np.testing.assert_array_equal(weights(model)[1], before[1])

    def test_deferred(self) -> None:
        model = build(line, lambda: BY_NAME.SGD(0.5), model_name="m")
        before = weights(model)
        deferred: dict[str, Any] = {}
        for _ in range(2):
            backend.update_model(model, ones(model), defer=True, deferred=deferred)
        assert same_weights(model, before)
        assert list(deferred) == ["m"]
        for update in deferred["m"]:
            update()
        for now, then in zip(weights(model), before, strict=True):
            np.testing.assert_allclose(now, then - 1, rtol=1e-6)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("defer", [False, True])
    def test_gradients_are_what_they_are_in_mixed_precision_too(
        self, kind: Any, defer: bool
    ) -> None:
        """Whoever hands them over has not scaled the loss."""
        model = build(line, lambda: kind.SGD(0.5), mixed_precision=True)
        before = weights(model)
        deferred: dict[str, Any] = {}
        backend.update_model(model, ones(model), defer, deferred)
        for update in deferred.get(model.model_name, []):
            update()
        for now, then in zip(weights(model), before, strict=True):
            np.testing.assert_allclose(now, then - 0.5, rtol=1e-6)

    def test_that_was_not_built(self) -> None:
        with raising(
            AssertionError,
            "Sequential has no current_optimizer. Make the model with fastnet.build.",
        ):
            backend.update_model(line(), [])

    def test_without_an_optimizer(self) -> None:
        model = build(line, None, model_name="m")
        with raising(
            ValueError,
            "Model 'm' is to be updated, but it has no optimizer in this epoch. Give fastnet.build "
            "an optimizer_fn (a scheduler's None means none), or let no UpdateOp run.",
        ):
            backend.update_model(model, ones(model))

    def test_deferred_to_nowhere(self) -> None:
        model = build(line, "sgd", model_name="m")
        with raising(
            ValueError,
            "An update of model 'm' is to be deferred, but no dict to defer it into was given. "
            "Pass `deferred`, or defer=False.",
        ):
            backend.update_model(model, ones(model), defer=True)

    def test_an_error_of_the_optimizers_names_the_model(self) -> None:
        class Failing(BY_NAME.SGD):  # type: ignore[misc, name-defined]
            def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
                raise ArithmeticError("inside")

        model = build(line, Failing, model_name="m")
        with pytest.raises(ArithmeticError, match="inside") as caught:
            backend.update_model(model, ones(model))
        notes = getattr(caught.value, "__notes__", None) or [str(caught.value)]
        assert "Raised by the update of model 'm'." in notes[0]


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

    def test_training_is_what_it_is_if_nobody_says(self) -> None:
        assert float(backend.feed_forward(Asking(), tf.constant(1.0))) == 2

    @pytest.mark.parametrize("training", [True, False])
    def test_a_model_that_does_not_ask(self, training: bool) -> None:
        y = backend.feed_forward(NotAsking(), tf.ones((1, 64)), training=training)
        assert (len(np.unique(y)) == 2) is training

    def test_of_no_framework(self) -> None:
        with pytest.raises(ValueError, match="Unrecognized model instance object"):
            backend.feed_forward(object(), tf.ones(1))


class TestAgainstFastEstimator:
    @pytest.mark.skipif(KERAS_3, reason="FastEstimator stops at Keras 2")
    def test_gradients_and_updates(self) -> None:
        theirs = pytest.importorskip("fastestimator")
        model = build(line, "adam")
        twin = theirs.build(line, "adam")
        twin.set_weights(model.get_weights())
        x = tf.constant([[1.0, -2.0]])
        for lib, one in ((backend, model), (theirs.backend, twin)):
            for _ in range(3):
                with tf.GradientTape(persistent=True) as tape:
                    loss = lib.reduce_mean(lib.feed_forward(one, x, training=True) ** 2)
                    gradients = lib.get_gradient(loss, one.trainable_variables, tape=tape)
                lib.update_model(one, gradients)
        assert same_weights(model, twin)


class TestApplyGradients:
    @ALL_KINDS
    @pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop"])
    @pytest.mark.parametrize("frozen", [False, True])
    def test_as_the_optimizers_own(self, kind: Any, name: str, frozen: bool) -> None:
        model, twin = twins(mlp)
        optimizer, other = getattr(kind, name)(0.1), getattr(kind, name)(0.1)
        ready(optimizer, model), ready(other, twin)
        model.layers[0].trainable = twin.layers[0].trainable = not frozen
        for _ in range(3):
            update(model, optimizer, gradients_of(model))
            other.apply_gradients(zip(gradients_of(twin), twin.trainable_variables, strict=True))
            assert same_weights(model, twin)
        assert int(optimizer.iterations) == 3

    def test_none_for_some(self) -> None:
        model, twin = twins(mlp)
        optimizer, other = ready(BY_NAME.SGD(0.1), model), ready(BY_NAME.SGD(0.1), twin)
        gradients = [None, *gradients_of(model)[1:]]
        update(model, optimizer, gradients)
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
        update(model, optimizer, gradients_of(model))
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
        update(model, ready(Noting(0.1), model), gradients_of(model))
        assert seen == [4]

    @KERAS_3_ONLY
    def test_a_class_with_an_apply_of_its_own(self) -> None:
        seen: list[int] = []

        class Noting(BY_NAME.SGD):  # type: ignore[misc]
            def apply(self, gradients: Any, variables: Any = None) -> None:
                seen.append(len(variables))
                super().apply(gradients, variables)

        model = mlp()
        update(model, ready(Noting(0.1), model), gradients_of(model))
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
        update(model, optimizer, gradients_of(model))
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
        update(model, around, gradients_of(model))
        other.apply_gradients(zip(gradients_of(twin), twin.trainable_variables, strict=True))
        assert around.updates == 1
        assert same_weights(model, twin)
