"""UpdateOp of Keras models: what it trains, beside loops written by hand, and what it refuses."""

from __future__ import annotations

import copy
import gc
import re
import weakref
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fastnet.backend.tf.setup import prepare_optimizer
from fastnet.network import TFNetwork
from fastnet.network.build import build
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.gradient import GradientOp, Watch
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from tests.network.keras_models import (
    BY_NAME,
    KERAS_3,
    KINDS,
    assert_close,
    batches,
    classify,
    keras,
    layers,
    line,
    loop,
    mlp,
    regression,
    same_weights,
    supervised,
    to_zero,
    train,
    twins,
    variables_of,
    weights,
)
from tests.network.programs import raising

pytestmark = pytest.mark.tf

EAGER = pytest.mark.parametrize("eager", [False, True], ids=["static", "eager"])
ALL_KINDS = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.split(".")[-1])
X = {"x": tf.ones((3, 2))}
SCALING = keras.optimizers if KERAS_3 else keras.mixed_precision


def made(model: Any, optimizer: Any = "sgd", **kwargs: Any) -> Any:
    return build(lambda: model, optimizer, **kwargs)


def sgd(rate: float = 0.1) -> Any:
    return lambda: BY_NAME.SGD(rate)


class TestMaking:
    def test_settings(self) -> None:
        model = made(line())
        op = UpdateOp(model, "loss", None, ["train", "eval"], "!a", 3, True)
        assert op.model is model
        assert (op.inputs, op.outputs) == (["loss"], [])
        assert (op.mode, op.ds_id) == ({"train", "eval"}, {"!a"})
        assert (op.merge_grad, op.defer, op.gradients, op.loss_name) == (3, True, None, "loss")
        assert op.get_fe_loss_keys() == {"loss"}
        assert op.fe_retain_graph() is False

    def test_losses_are_noted_on_the_model(self) -> None:
        model = made(line())
        UpdateOp(model, "a")
        UpdateOp(model, "b")
        assert model.loss_name == {"a", "b"}

    def test_given_gradients_with_mixed_precision(self) -> None:
        model = made(line(), mixed_precision=True, model_name="m")
        with raising(
            ValueError,
            "UpdateOp of 'm' is given the gradients 'g', but the model has mixed precision, where "
            "the loss is scaled before its gradients are taken. Leave `gradients` out, or build "
            "the model with mixed_precision=False.",
        ):
            UpdateOp(model, "loss", gradients="g")

    def test_given_gradients_and_losses_of_the_models_own(self) -> None:
        model = made(regularized(), model_name="m")
        text = (
            "The model 'm' has losses of its own, such as regularizers. They are left out, because "
            "UpdateOp is given the gradients 'g'."
        )
        with pytest.warns(UserWarning, match=f"^{re.escape(text)}$") as caught:
            UpdateOp(model, "loss", gradients="g")
        assert [warning.filename for warning in caught] == [__file__]


def regularized() -> Any:
    x = layers.Input((2,))
    regularizers = keras.regularizers
    y = layers.Dense(
        3,
        activation="tanh",
        kernel_regularizer=regularizers.L2(0.1),
        bias_regularizer=regularizers.L1(0.2),
        activity_regularizer=regularizers.L2(0.3),
    )(x)
    return keras.Model(x, layers.Dense(1, kernel_regularizer=regularizers.L1(0.05))(y))


class Adding(keras.Model):
    """A model with a loss that it adds itself."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, x: Any) -> Any:
        y = self.dense(x)
        self.add_loss(0.7 * tf.reduce_sum(tf.abs(y)))
        return y


@EAGER
class TestLossesOfTheModelsOwn:
    @pytest.mark.parametrize("make", [regularized, Adding])
    def test_are_added(self, eager: bool, make: Any) -> None:
        keras.utils.set_random_seed(1)
        model, twin = make(), make()
        for one in (model, twin):
            one(X["x"])
        twin.set_weights(model.get_weights())
        before = weights(model)
        data = [{"x": tf.constant([[1.0, -2.0], [0.5, 3.0]]) * scale} for scale in (1.0, 0.1, 2.0)]
        train(TFNetwork(regression(made(model, sgd()))), data, eager)
        loop(twin, BY_NAME.SGD(0.1), data, to_zero)
        assert_close(model, twin)
        assert not same_weights(model, before)

    def test_to_losses_of_samples_too(self, eager: bool) -> None:
        """They count once, not once a sample."""
        model, twin = twins(regularized)
        network = TFNetwork(
            [
                ModelOp(made(model, sgd()), "x", "y"),
                LambdaOp(lambda y: tf.reduce_sum(y**2, axis=1), "y", "loss"),
                UpdateOp(model, "loss"),
            ]
        )
        result = train(network, [X], eager)
        assert tuple(result[0]["loss"].shape) == (3,)
        loop(twin, BY_NAME.SGD(0.1), [X], lambda y, batch: tf.reduce_sum(y**2, axis=1))
        assert_close(model, twin)

    def test_not_to_given_gradients(self, eager: bool) -> None:
        model = made(regularized(), sgd(1.0))
        before = weights(model)
        with pytest.warns(UserWarning, match="losses of its own"):
            network = TFNetwork([UpdateOp(model, "loss", gradients="g")])
        train(network, [{"g": [tf.zeros_like(weight) for weight in before]}], eager)
        assert same_weights(model, before)

    def test_of_frozen_layers(self, eager: bool) -> None:
        model, twin = twins(regularized)
        for one in (model, twin):
            one.layers[1].trainable = False
        train(TFNetwork(regression(made(model, sgd()))), [X] * 2, eager)
        loop(twin, BY_NAME.SGD(0.1), [X] * 2, to_zero)
        assert_close(model, twin)

    def test_in_mixed_precision(self, eager: bool) -> None:
        """Some of them are float16, others float32."""
        model = build(regularized, sgd(), mixed_precision=True)
        twin = build(regularized, sgd(), mixed_precision=True)
        twin.set_weights(model.get_weights())
        data = [{"x": tf.constant([[1.0, -2.0], [0.5, 3.0]])}] * 3
        train(TFNetwork(regression(model)), data, eager)
        # as `loop`, with the sum of all losses in float32
        optimizer = twin.optimizer
        scale = getattr(optimizer, "get_scaled_loss", None) or optimizer.scale_loss
        for batch in data:
            with tf.GradientTape() as tape:
                loss = to_zero(twin(batch["x"], training=True), batch)
                loss += sum(tf.cast(own, "float32") for own in twin.losses)
                loss = scale(loss)
            gradients = tape.gradient(loss, twin.trainable_variables)
            if not KERAS_3:
                gradients = optimizer.get_unscaled_gradients(gradients)
            optimizer.apply_gradients(zip(gradients, twin.trainable_variables, strict=True))
        # half precision rounds otherwise wherever a graph computes in another order
        assert_close(model, twin, 3e-3)


@EAGER
class TestMerging:
    @pytest.mark.parametrize(("merge", "kind"), [(3, BY_NAME), (2, KINDS[-1])])
    def test_as_by_hand(self, eager: bool, merge: int, kind: Any) -> None:
        model, twin = twins(mlp)
        data = batches(7)
        model = made(model, lambda: kind.Adam(0.01))
        network = TFNetwork(supervised(model, merge_grad=merge))
        # what is added up outlives an opening
        train(network, data[:3], eager)
        train(network, data[3:], eager, epoch=2)
        loop(twin, kind.Adam(0.01), data, classify, merge)
        assert_close(model, twin, 1e-4)

    @pytest.mark.parametrize("lowered", [1, 2])
    def test_a_lower_merge_grad_averages_what_was_merged_before(
        self, eager: bool, lowered: int
    ) -> None:
        model, twin = twins(mlp)
        data = batches(5)
        model = made(model, sgd())
        ops = supervised(model, merge_grad=3)
        network = TFNetwork(ops)
        train(network, data[:2], eager)
        ops[2].merge_grad = lowered
        train(network, data[2:], eager, epoch=2)
        optimizer = BY_NAME.SGD(0.1)
        loop(twin, optimizer, data[:3], classify, 3)
        loop(twin, optimizer, data[3:], classify, lowered)
        assert_close(model, twin, 1e-4)

    def test_no_update_until_there_are_enough(self, eager: bool) -> None:
        model = made(mlp(), sgd())
        network = TFNetwork(supervised(model, merge_grad=3))
        moved = []
        with network(mode="train", epoch=1, eager=eager):
            for batch in batches(7):
                before = weights(model)
                network.run_step(batch)
                moved.append(not same_weights(model, before))
        assert moved == [False, False, True, False, False, True, False]
        iterations = [v for v in variables_of(model.optimizer) if "iter" in str(v.name)]
        assert [int(tf.convert_to_tensor(value)) for value in iterations] == [2]

    def test_batches_of_all_sizes(self, eager: bool) -> None:
        model, twin = twins(mlp)
        data = [batches(1, size=size, seed=size)[0] for size in (8, 5, 3, 8)]
        network = TFNetwork(supervised(made(model, sgd()), merge_grad=2))
        train(network, data, eager)
        # one for the first size, and one for all others
        assert eager or len(network.traces) == 2
        loop(twin, BY_NAME.SGD(0.1), data, classify, 2)
        assert_close(model, twin)

    def test_deferred(self, eager: bool) -> None:
        """What comes after the update still sees the weights from before."""
        model, twin = twins(mlp)
        data = batches(4)
        ops = supervised(made(model, sgd()), merge_grad=2, defer=True)
        network = TFNetwork([*ops, ModelOp(model, "x", "again")])
        for result in train(network, data, eager):
            np.testing.assert_allclose(result["again"], result["y"], rtol=1e-6, atol=1e-7)
        loop(twin, BY_NAME.SGD(0.1), data, classify, 2)
        assert_close(model, twin)

    def test_with_frozen_layers(self, eager: bool) -> None:
        model, twin = twins(mlp)
        for one in (model, twin):
            one.layers[0].trainable = False
        data = batches(4)
        train(TFNetwork(supervised(made(model, sgd()), merge_grad=2)), data, eager)
        loop(twin, BY_NAME.SGD(0.1), data, classify, 2)
        assert_close(model, twin)

    def test_layers_that_are_frozen_between(self, eager: bool) -> None:
        """A layer's gradients up to then count no more, once there was an update without them."""
        model, twin = twins(mlp)
        data = batches(5)
        model = made(model, sgd())
        network = TFNetwork(supervised(model, merge_grad=2))
        train(network, data[:1], eager)
        model.layers[0].trainable = False
        train(network, data[1:2], eager, epoch=2)
        model.layers[0].trainable = True
        train(network, data[2:4], eager, epoch=3)

        def gradients(batch: Any) -> list[Any]:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(classify(twin(batch["x"]), batch))
            return list(tape.gradient(loss, twin.trainable_variables))

        optimizer = BY_NAME.SGD(0.1)
        if KERAS_3:
            optimizer.build(twin.trainable_variables)
        one, two = gradients(data[0]), gradients(data[1])
        pairs = zip(one[2:], two[2:], twin.trainable_variables[2:], strict=True)
        optimizer.apply_gradients([((a + b) / 2, variable) for a, b, variable in pairs])
        one, two = gradients(data[2]), gradients(data[3])
        pairs = zip(one, two, twin.trainable_variables, strict=True)
        optimizer.apply_gradients([((a + b) / 2, variable) for a, b, variable in pairs])
        assert_close(model, twin)

    def test_given_gradients(self, eager: bool) -> None:
        model = made(line(), sgd(1.0))
        before = weights(model)
        network = TFNetwork([UpdateOp(model, "loss", gradients="g", merge_grad=2)])
        steps = [{"g": [tf.fill((2, 1), value), tf.fill((1,), value)]} for value in (1.0, 5.0)]
        train(network, steps, eager)
        for now, then in zip(weights(model), before, strict=True):
            np.testing.assert_allclose(now, then - 3, rtol=1e-6)

    def test_two_ops_merge_each_for_itself(self, eager: bool) -> None:
        model = made(line(), sgd(1.0))
        before = weights(model)
        network = TFNetwork(
            [
                UpdateOp(model, "a", gradients="g", merge_grad=2),
                UpdateOp(model, "b", gradients="g", merge_grad=3),
            ]
        )
        moved = []
        gradients = [tf.ones((2, 1)), tf.zeros((1,))]
        with network(mode="train", epoch=1, eager=eager):
            for _ in range(6):
                network.run_step({"g": gradients})
                moved.append(round(float((before[0] - weights(model)[0])[0, 0])))
        assert moved == [0, 1, 2, 3, 3, 5]

    @pytest.mark.parametrize(("fails", "defer"), [(0, False), (1, False), (1, True)])
    def test_a_step_that_fails(self, eager: bool, fails: int, defer: bool) -> None:
        """Run op by op it counts for nothing; in a graph it may, but no update is left out."""
        model, twin = twins(mlp)
        data = batches(5)
        ops = supervised(made(model, sgd()), merge_grad=2, defer=defer)
        network = TFNetwork([*ops, LambdaOp(lambda x, n: tf.gather(x, n), ["x", "n"], "z")])
        counted, moved = [], []
        with network(mode="train", epoch=1, eager=eager):
            for number, batch in enumerate(data):
                bad = number == fails
                before = weights(model)
                try:
                    network.run_step({**batch, "n": tf.constant([99 if bad else 0])})
                except tf.errors.InvalidArgumentError:
                    assert bad
                    if fails == 1 and not defer:
                        counted.append(batch)  # the update was made before
                else:
                    assert not bad
                    counted.append(batch)
                moved.append(not same_weights(model, before))
        assert moved[fails] is False or not defer or not eager
        assert any(moved[fails + 1 : fails + 3])
        if eager:
            loop(twin, BY_NAME.SGD(0.1), counted, classify, 2)
            assert_close(model, twin)

    def test_mixed_precision(self, eager: bool) -> None:
        model = build(mlp, sgd(), mixed_precision=True)
        twin = build(mlp, sgd(), mixed_precision=True)
        twin.set_weights(model.get_weights())
        data = batches(4)
        train(TFNetwork(supervised(model, merge_grad=2)), data, eager)
        loop(twin, twin.optimizer, data, lambda y, b: classify(tf.cast(y, "float32"), b), 2)
        assert_close(model, twin, 1e-3)

    def test_a_loss_that_reaches_some_variables_only(self, eager: bool) -> None:
        model, twin = twins(two_heads)
        ops = [
            ModelOp(made(model, sgd()), "x", ["a", "b"]),
            LambdaOp(lambda a: tf.reduce_mean(a**2), "a", "loss"),
            UpdateOp(model, "loss", merge_grad=2),
        ]
        train(TFNetwork(ops), [X] * 2, eager)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(twin(X["x"])[0] ** 2)
        pairs = zip(tape.gradient(loss, twin.trainable_variables), twin.weights, strict=True)
        BY_NAME.SGD(0.1).apply_gradients([pair for pair in pairs if pair[0] is not None])
        assert_close(model, twin)


def two_heads() -> Any:
    x = layers.Input((2,))
    return keras.Model(x, [layers.Dense(1, name="left")(x), layers.Dense(1, name="right")(x)])


class TakeGradients(TensorOp):
    """Writes the gradients of a loss, and may change them."""

    def __init__(self, model: Any, inputs: str, outputs: str, factor: float = 1.0) -> None:
        super().__init__(inputs, outputs)
        self.model = model
        self.factor = factor

    def forward(self, data: Any, state: Any) -> Any:
        gradients = state["tape"].gradient(data, list(self.model.trainable_variables))
        return [gradient * self.factor for gradient in gradients]

    def fe_retain_graph(self, retain: Any = None) -> Any:
        return False


@EAGER
class TestGivenGradients:
    def test_are_applied(self, eager: bool) -> None:
        model, twin = twins(mlp)
        data = batches(3)
        ops = supervised(made(model, sgd()))
        ops[2:] = [
            TakeGradients(model, "loss", "g", factor=3.0),
            UpdateOp(model, "loss", gradients="g"),
        ]
        train(TFNetwork(ops), data, eager)
        loop(twin, BY_NAME.SGD(0.3), data, classify)
        assert_close(model, twin)

    def test_none_for_some(self, eager: bool) -> None:
        model = made(line(), sgd(1.0))
        before = weights(model)
        network = TFNetwork([UpdateOp(model, "loss", gradients="g")])
        train(network, [{"g": [None, tf.ones((1,))]}], eager)
        after = weights(model)
        np.testing.assert_array_equal(after[0], before[0])
        np.testing.assert_allclose(after[1], before[1] - 1)

    @ALL_KINDS
    @pytest.mark.parametrize("defer", [False, True])
    def test_are_not_scaled_down(self, eager: bool, kind: Any, defer: bool) -> None:
        """Gradients of a loss that is not scaled make the update that they stand for."""
        wrappers = [lambda: SCALING.LossScaleOptimizer(kind.SGD(1.0))]
        if KERAS_3:
            wrappers.append(lambda: kind.SGD(1.0, loss_scale_factor=512.0))
        for make in wrappers:
            model = made(line(), make)
            before = weights(model)
            network = TFNetwork([UpdateOp(model, "loss", gradients="g", defer=defer)])
            train(network, [{"g": [tf.ones((2, 1)), tf.ones((1,))]}], eager)
            for now, then in zip(weights(model), before, strict=True):
                np.testing.assert_allclose(now, then - 1, rtol=1e-6)

    @pytest.mark.parametrize("merge", [1, 2])
    @pytest.mark.parametrize(
        ("gradients", "got"),
        [
            ([tf.ones((2, 1))], "1 of them"),
            (tf.ones(2), type(tf.ones(2)).__name__),
            (None, "NoneType"),
        ],
    )
    def test_that_do_not_fit_the_variables(
        self, eager: bool, merge: int, gradients: Any, got: str
    ) -> None:
        model = made(line(), model_name="m")
        before = weights(model)
        network = TFNetwork([UpdateOp(model, "loss", gradients="g", merge_grad=merge)])
        if got not in ("1 of them", "NoneType") and not eager:
            got = "SymbolicTensor" if hasattr(tf.Tensor, "__tf_tensor__") else "Tensor"
        with pytest.raises(ValueError, match="reads gradients") as caught:
            train(network, [{"g": gradients}], eager)
        assert str(caught.value) == (
            "UpdateOp of 'm' reads gradients from 'g', a list with one for each of the model's 2 "
            f"trainable variables, but got {got}."
        )
        assert same_weights(model, before)


@EAGER
class TestMixedPrecision:
    @ALL_KINDS
    def test_as_by_hand(self, eager: bool, kind: Any) -> None:
        model = build(mlp, lambda: kind.Adam(0.01), mixed_precision=True)
        twin = build(mlp, lambda: kind.Adam(0.01), mixed_precision=True)
        twin.set_weights(model.get_weights())
        data = batches(5)
        train(TFNetwork(supervised(model)), data, eager)
        # CrossEntropy is Keras's own, in the type of the predictions
        own = keras.losses.sparse_categorical_crossentropy
        loop(twin, twin.optimizer, data, lambda y, b: own(b["t"], y, from_logits=True))
        assert_close(model, twin, 1e-3)
        assert scale_of(model.optimizer) == scale_of(twin.optimizer) == 2**15

    @pytest.mark.parametrize(("kind", "merge"), [(BY_NAME, 1), (KINDS[-1], 2)])
    def test_a_step_that_overflows_is_skipped(self, eager: bool, kind: Any, merge: int) -> None:
        model = build(line, lambda: kind.SGD(0.1), mixed_precision=True)
        network = TFNetwork(regression(model, merge_grad=merge))
        before = weights(model)
        train(network, [{"x": tf.fill((2, 2), 6e4)}] * merge, eager)
        assert same_weights(model, before)
        assert scale_of(model.optimizer) == 2**14
        # nothing of it is left behind
        train(network, [{"x": tf.fill((2, 2), 1e-2)}] * merge, eager, epoch=2)
        assert not same_weights(model, before)
        assert all(np.isfinite(value).all() for value in weights(model))

    @ALL_KINDS
    def test_a_scaling_optimizer_in_full_precision(self, eager: bool, kind: Any) -> None:
        model, twin = twins(mlp)
        data = batches(3)
        model = made(model, lambda: SCALING.LossScaleOptimizer(kind.SGD(0.1)))
        train(TFNetwork(supervised(model)), data, eager)
        loop(twin, kind.SGD(0.1), data, classify)
        assert_close(model, twin)

    @pytest.mark.skipif(not KERAS_3, reason="Keras 2 has no loss_scale_factor")
    @pytest.mark.parametrize("merge", [2])
    def test_a_loss_scale_factor(self, eager: bool, merge: int) -> None:
        model, twin = twins(mlp)
        data = batches(4)
        model = made(model, lambda: BY_NAME.SGD(0.1, loss_scale_factor=1024.0))
        train(TFNetwork(supervised(model, merge_grad=merge)), data, eager)
        loop(twin, BY_NAME.SGD(0.1), data, classify, merge)
        assert_close(model, twin)


def scale_of(optimizer: Any) -> float:
    scale = optimizer.dynamic_scale if KERAS_3 else optimizer.loss_scale
    return float(tf.convert_to_tensor(scale))


@EAGER
class TestWarmup:
    @pytest.mark.parametrize("merge", [2])
    def test_makes_no_update(self, eager: bool, merge: int) -> None:
        model, twin = twins(mlp)
        data = batches(4)
        model = made(model, "adam")
        network = TFNetwork(supervised(model, merge_grad=merge))
        before = weights(model)
        results = train(network, data[:3], eager, warmup=True)
        assert all("loss" in result for result in results)
        assert same_weights(model, before)
        # nor does it count, for merging or for the optimizer
        train(network, data, eager)
        loop(twin, BY_NAME.Adam(), data, classify, merge)
        assert_close(model, twin, 1e-4)


def late() -> Any:
    return keras.Sequential([layers.Dense(5), layers.Dense(3)])


@EAGER
class TestFrozenLayers:
    @ALL_KINDS
    @pytest.mark.parametrize("make", [mlp, late])
    def test_that_are_thawed_later(self, eager: bool, kind: Any, make: Any) -> None:
        """An optimizer that takes no new variables has those of frozen layers from the start."""
        data = batches(4)
        keras.utils.set_random_seed(4)
        model = make()
        model.layers[0].trainable = False
        model = made(model, lambda: kind.Adam(0.01))
        network = TFNetwork(supervised(model))
        train(network, data[:1], eager)
        keras.utils.set_random_seed(4)
        twin = make()
        twin(data[0]["x"])
        twin.layers[0].trainable = False
        train(network, data[1:2], eager)
        for now, then in zip(*(one.layers[0].get_weights() for one in (model, twin)), strict=True):
            np.testing.assert_array_equal(now, then)
        model.layers[0].trainable = True
        train(network, data[2:], eager, epoch=2)
        # by hand, with the steps counted from the first one on, as the optimizer counts them
        optimizer = kind.Adam(0.01)
        if hasattr(optimizer, "build"):
            twin.layers[0].trainable = True
            optimizer.build(twin.trainable_variables)
            twin.layers[0].trainable = False
        loop(twin, optimizer, data[:2], classify)
        twin.layers[0].trainable = True
        loop(twin, optimizer, data[2:], classify)
        assert_close(model, twin, 1e-4)

    @ALL_KINDS
    def test_a_model_that_is_frozen_as_a_whole(self, eager: bool, kind: Any) -> None:
        model, twin = twins(mlp)
        model.trainable = False
        model = made(model, lambda: kind.SGD(0.1, momentum=0.9), model_name="m")
        network = TFNetwork(supervised(model))
        with raising(
            ValueError,
            "Model 'm' is to be updated, but none of its layers is trainable. Unfreeze some of "
            "them, or take the UpdateOp out.",
        ):
            train(network, batches(1), eager)
        model.trainable = True
        data = batches(2)
        train(network, data, eager)
        loop(twin, kind.SGD(0.1, momentum=0.9), data, classify)
        assert_close(model, twin)


def embedding() -> Any:
    words = layers.Input((3,), dtype="int32")
    x = layers.Flatten()(layers.Embedding(9, 2)(words))
    return keras.Model(words, layers.Dense(3)(x))


@EAGER
class TestSparseGradients:
    """Those of an Embedding are rows of it, not the whole."""

    DATA = ([[1, 2, 2], [0, 8, 1]], [[3, 3, 3], [1, 0, 2]], [[7, 7, 1], [2, 2, 2]])

    def data(self) -> list[Any]:
        truth = tf.constant([0, 2])
        return [{"x": tf.constant(words), "t": truth} for words in self.DATA * 2]

    @ALL_KINDS
    @pytest.mark.parametrize(("name", "merge"), [("SGD", 1), ("Adam", 2)])
    def test_as_by_hand(self, eager: bool, kind: Any, name: str, merge: int) -> None:
        model, twin = twins(embedding)
        make = getattr(kind, name)
        ops = supervised(made(model, lambda: make(0.1)), merge_grad=merge)
        train(TFNetwork(ops), self.data(), eager)
        loop(twin, make(0.1), self.data(), classify, merge)
        assert_close(model, twin, 1e-4)

    @pytest.mark.parametrize("merge", [2])
    def test_in_mixed_precision(self, eager: bool, merge: int) -> None:
        model = build(embedding, sgd(), mixed_precision=True)
        twin = build(embedding, sgd(), mixed_precision=True)
        twin.set_weights(model.get_weights())
        train(TFNetwork(supervised(model, merge_grad=merge)), self.data(), eager)
        own = keras.losses.sparse_categorical_crossentropy
        loop(
            twin,
            twin.optimizer,
            self.data(),
            lambda y, b: own(b["t"], y, from_logits=True),
            merge,
        )
        assert_close(model, twin, 2e-3)

    def test_given(self, eager: bool) -> None:
        class Take(TensorOp):
            def forward(self, data: Any, state: Any) -> Any:
                return state["tape"].gradient(data, list(model.trainable_variables))

            def fe_retain_graph(self, retain: Any = None) -> Any:
                return False

        model, twin = twins(embedding)
        ops = supervised(made(model, sgd()))
        ops[2:] = [Take("loss", "g"), UpdateOp(model, "loss", gradients="g")]
        network = TFNetwork(ops)
        with network(mode="train", epoch=1, eager=eager, desired_output_keys={"loss"}):
            for batch in self.data():
                network.run_step(batch)
        loop(twin, BY_NAME.SGD(0.1), self.data(), classify)
        assert_close(model, twin)


def wide(inputs: int, outputs: int) -> Any:
    return keras.Sequential([layers.Input((inputs,)), layers.Dense(outputs, activation="tanh")])


@EAGER
class TestSeveralUpdates:
    def test_models_that_work_together(self, eager: bool) -> None:
        """Each update takes the gradients of what was computed before any of them."""
        (first, one), (second, two) = twins(lambda: wide(2, 3)), twins(lambda: wide(3, 1))
        first = made(first, sgd(), model_name="first")
        second = made(second, sgd(), model_name="second")
        network = TFNetwork(
            [
                ModelOp(first, "x", "h"),
                ModelOp(second, "h", "y"),
                LambdaOp(lambda y: tf.reduce_mean(y**2), "y", "loss"),
                UpdateOp(second, "loss"),
                UpdateOp(first, "loss"),
            ]
        )
        x = tf.constant([[1.0, 2.0], [0.3, -1.0]])
        train(network, [{"x": x}] * 3, eager)
        for _ in range(3):
            with tf.GradientTape(persistent=True) as tape:
                loss = tf.reduce_mean(two(one(x)) ** 2)
            for each in (two, one):
                gradients = tape.gradient(loss, each.trainable_variables)
                pairs = zip(gradients, each.trainable_variables, strict=True)
                BY_NAME.SGD(0.1).apply_gradients(pairs)
        assert_close(first, one)
        assert_close(second, two)

    @pytest.mark.parametrize("defer", [False, True])
    def test_deferred_or_not(self, eager: bool, defer: bool) -> None:
        """A model that runs again after an update shows it, unless the update is put off."""
        model = made(line(), sgd())
        ops = regression(model, defer=defer)
        result = train(TFNetwork([*ops, ModelOp(model, "x", "again")]), [X], eager)[0]
        assert np.allclose(result["again"], result["y"]) is defer

    def test_one_model_by_two_losses(self, eager: bool) -> None:
        model, twin = twins(line)
        network = TFNetwork(
            [
                ModelOp(made(model, sgd()), "x", "y"),
                LambdaOp(lambda y: (tf.reduce_mean(y**2), tf.reduce_sum(y)), "y", ["a", "b"]),
                UpdateOp(model, "a"),
                UpdateOp(model, "b"),
            ]
        )
        train(network, [X] * 2, eager)
        for _ in range(2):
            with tf.GradientTape(persistent=True) as tape:
                y = twin(X["x"])
                two = (tf.reduce_mean(y**2), tf.reduce_sum(y))
            for loss in two:
                pairs = zip(tape.gradient(loss, twin.weights), twin.weights, strict=True)
                BY_NAME.SGD(0.1).apply_gradients(pairs)
        assert_close(model, twin)


@EAGER
class TestTape:
    def test_goes_on_behind_an_update(self, eager: bool) -> None:
        """What comes behind is differentiated through what came before the update."""
        model, twin = twins(line)
        network = TFNetwork(
            [
                Watch("x"),
                *regression(made(model, sgd())),
                LambdaOp(lambda loss: loss * 3, "loss", "more"),
                GradientOp(["loss", "more"], ["first", "second"], ["x", "x"]),
            ]
        )
        for result in train(network, [X] * 2, eager):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(X["x"])
                loss = to_zero(twin(X["x"]), X)
            expected = tape.gradient(loss, X["x"])
            np.testing.assert_allclose(result["first"], expected, rtol=1e-5)
            np.testing.assert_allclose(result["second"], 3 * expected, rtol=1e-5)
            loop(twin, BY_NAME.SGD(0.1), [X], to_zero)
        assert_close(model, twin)

    @pytest.mark.parametrize("defer", [False, True])
    @pytest.mark.parametrize("fails", [False, True])
    def test_takes_no_part_in_an_update(self, eager: bool, fails: bool, defer: bool) -> None:
        tapes: list[Any] = []
        recording: list[bool] = []

        class Keep(TensorOp):
            def forward(self, data: None, state: dict[str, Any]) -> None:
                tapes.append(state["tape"])
                recording.append(state["tape"]._recording)

        class Noting(BY_NAME.SGD):  # type: ignore[misc]
            def apply_gradients(self, pairs: Any, *args: Any, **kwargs: Any) -> Any:
                recording.append(tapes[-1]._recording)
                if fails:
                    raise ArithmeticError("stuck")
                return super().apply_gradients(pairs, *args, **kwargs)

        model = made(line(), lambda: Noting(0.1))
        network = TFNetwork([Keep(), *regression(model, defer=defer), Keep()])
        expects = pytest.raises(ArithmeticError, match="stuck") if fails else nullcontext()
        with expects:
            train(network, [X], eager)
        step = [True, True, False] if defer else [True, False, True]
        if fails and not defer:
            del step[-1]
        assert recording == step


class TestEagerSteps:
    """Steps share what they find out of a model, as long as it is so, and no longer."""

    def test_frozen_in_the_middle_of_an_opening(self) -> None:
        model, twin = twins(mlp)
        network = TFNetwork(supervised(made(model, sgd())))
        data = batches(3)
        with network(mode="train", epoch=1, eager=True):
            for frozen, batch in zip([False, True, False], data, strict=True):
                for each in (model, twin):
                    each.layers[0].trainable = not frozen
                network.run_step(batch)
                loop(twin, BY_NAME.SGD(0.1), [batch], classify)
        assert_close(model, twin)

    def test_another_optimizer_in_the_middle_of_an_opening(self) -> None:
        model, twin = twins(line)
        network = TFNetwork(regression(made(model, sgd(0.1))))
        with network(mode="train", epoch=1, eager=True):
            network.run_step(X)
            other = BY_NAME.SGD(0.01)
            prepare_optimizer(other, model)
            model.current_optimizer = other
            network.run_step(X)
        loop(twin, BY_NAME.SGD(0.1), [X], to_zero)
        loop(twin, BY_NAME.SGD(0.01), [X], to_zero)
        assert_close(model, twin)

    def test_one_op_in_two_openings_in_turn(self) -> None:
        model, twin = twins(line)
        ops = regression(made(model, sgd()))
        first, second = TFNetwork(ops), TFNetwork(ops)
        with first(mode="train", epoch=1, eager=True), second(mode="train", epoch=1, eager=True):
            for network in (first, second, first):
                network.run_step(X)
        loop(twin, BY_NAME.SGD(0.1), [X] * 3, to_zero)
        assert_close(model, twin)

    def test_an_optimizer_is_let_go_of(self) -> None:
        model = made(line(), "adam")
        network = TFNetwork(regression(model))
        train(network, [X], eager=True)
        gone = weakref.ref(model.optimizer)
        model.optimizer = model.current_optimizer = BY_NAME.SGD(0.1)
        gc.collect()
        assert gone() is None

    def test_an_op_that_was_used_can_be_copied(self) -> None:
        model = made(line(), sgd())
        ops = regression(model)
        train(TFNetwork(ops), [X], eager=True)
        copied = copy.deepcopy(ops[-1])
        assert same_weights(copied.model, model)


@EAGER
def test_a_copy_has_a_defer_of_its_own(eager: bool) -> None:
    model = made(line(), sgd())
    ops = regression(model)
    ops[-1] = copy.copy(ops[-1])
    ops[-1].defer = True
    result = train(TFNetwork([*ops, ModelOp(model, "x", "again")]), [X], eager)[0]
    np.testing.assert_allclose(result["again"], result["y"])
    after = train(TFNetwork([ModelOp(model, "x", "y")]), [X], eager)[0]
    assert not np.allclose(after["y"], result["y"])


@EAGER
class TestErrors:
    def refused(
        self, network: Any, model: Any, kind: Any, text: str, eager: bool, batch: Any = X
    ) -> None:
        before = weights(model)
        with raising(kind, text):
            train(network, [batch], eager)
        assert same_weights(model, before)
        assert network.ctx_ops == []

    def test_no_optimizer(self, eager: bool) -> None:
        model = made(line(), None, model_name="m")
        self.refused(
            TFNetwork(regression(model)),
            model,
            ValueError,
            "Model 'm' is to be updated, but it has no optimizer in this epoch. Give fastnet.build "
            "an optimizer_fn (a scheduler's None means none), or let no UpdateOp run.",
            eager,
        )

    def test_no_optimizer_in_this_epoch(self, eager: bool) -> None:
        model = made(line(), EpochScheduler({1: "sgd", 2: None}), model_name="m")
        network = TFNetwork(regression(model))
        train(network, [X], eager)
        with pytest.raises(ValueError, match=r"^Model 'm' is to be updated, but it has no optimi"):
            train(network, [X], eager, epoch=2)
        train(network, [X], eager)

    def test_a_loss_that_does_not_reach_the_model(self, eager: bool) -> None:
        model, other = made(line(), model_name="m"), line()
        ops = regression(model)
        ops[1] = LambdaOp(lambda x: tf.reduce_mean(other(x)), "x", "loss")
        self.refused(
            TFNetwork(ops),
            model,
            ValueError,
            "The loss 'loss' has no gradients for any variable of 'm': it was not made from the "
            "output of a ModelOp of this model with gradients=True, in the same step.",
            eager,
        )

    def test_a_model_run_without_gradients(self, eager: bool) -> None:
        model = made(line(), model_name="m")
        ops = regression(model)
        ops[0] = ModelOp(model, "x", "y", trainable=False, gradients=False)
        self.refused(
            TFNetwork(ops),
            model,
            ValueError,
            "The loss 'loss' has no gradients for any variable of 'm': it was not made from the "
            "output of a ModelOp of this model with gradients=True, in the same step.",
            eager,
        )

    def test_what_is_no_loss(self, eager: bool) -> None:
        model = made(line(), model_name="m")
        ops = regression(model)
        ops[1] = LambdaOp(lambda y: [y, y], "y", "loss")
        self.refused(
            TFNetwork(ops),
            model,
            ValueError,
            "UpdateOp of 'm' reads a tensor as its loss 'loss', but got list.",
            eager,
        )

    def test_the_optimizers_own(self, eager: bool) -> None:
        """Named, and otherwise as the optimizer raises it."""

        class Failing(BY_NAME.SGD):  # type: ignore[misc, name-defined]
            def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
                raise ArithmeticError("inside")

        model = made(line(), Failing, model_name="m")
        network = TFNetwork(regression(model))
        with pytest.raises(ArithmeticError, match="inside") as caught:
            train(network, [X], eager)
        notes = "\n".join(getattr(caught.value, "__notes__", [str(caught.value)]))
        assert "Raised by the update of model 'm'." in notes
        assert "Raised by UpdateOp (op 2, inputs ['loss'])." in notes


@EAGER
def test_some_variables_have_no_gradients(eager: bool) -> None:
    model, twin = twins(two_heads)
    network = TFNetwork(
        [
            ModelOp(made(model, sgd()), "x", ["a", "b"]),
            LambdaOp(lambda b: tf.reduce_mean(b**2), "b", "loss"),
            UpdateOp(model, "loss"),
        ]
    )
    train(network, [X] * 2, eager)
    optimizer = BY_NAME.SGD(0.1)
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(twin(X["x"])[1] ** 2)
        pairs = zip(tape.gradient(loss, twin.weights), twin.weights, strict=True)
        optimizer.apply_gradients([pair for pair in pairs if pair[0] is not None])
    assert_close(model, twin)
