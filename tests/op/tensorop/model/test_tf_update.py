"""Updates and averages of Keras models, beside hand-written loops, and what is for torch only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fastnet.backend import update_model
from fastnet.network import TFNetwork
from fastnet.network.build import build
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.meta import Repeat
from fastnet.op.tensorop.model import EMA, LRSchedule, ModelOp, UpdateOp
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
    weights,
)
from tests.network.tf_programs import EITHER_WAY

pytestmark = pytest.mark.tf

ALL_KINDS = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.split(".")[-1])
X = {"x": tf.ones((3, 2))}
SCALING = keras.optimizers if KERAS_3 else keras.mixed_precision


def made(model: Any, optimizer: Any = "sgd", **kwargs: Any) -> Any:
    return build(lambda: model, optimizer, **kwargs)


def sgd(rate: float = 0.1) -> Any:
    return lambda: BY_NAME.SGD(rate)


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


def test_given_gradients_and_losses_of_the_models_own() -> None:
    model = made(regularized(), model_name="m")
    with pytest.warns(UserWarning, match="'m' has losses of its own.*left out.*'g'") as caught:
        UpdateOp(model, "loss", gradients="g")
    assert [warning.filename for warning in caught] == [__file__]


class Adding(keras.Model):
    """A model with a loss that it adds itself."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, x: Any) -> Any:
        y = self.dense(x)
        self.add_loss(0.7 * tf.reduce_sum(tf.abs(y)))
        return y


@EITHER_WAY
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

    @pytest.mark.parametrize("make", [regularized, Adding])
    @pytest.mark.parametrize("added", ["never", "by the program", "by one of two updates"])
    def test_are_left_to_the_program(self, eager: bool, make: Any, added: str) -> None:
        keras.utils.set_random_seed(1)
        model, twin = make(), make()
        for one in (model, twin):
            one(X["x"])
        twin.set_weights(model.get_weights())
        made(model, sgd())

        def square(y: Any) -> Any:
            loss = tf.reduce_mean(tf.square(y))
            return loss + tf.add_n(model.losses) if added == "by the program" else loss

        ops = [
            ModelOp(model, "x", "y"),
            LambdaOp(square, "y", "loss"),
            UpdateOp(model, "loss", model_losses=False, outputs={"total": "total"}),
        ]
        if added == "by one of two updates":
            ops.insert(2, UpdateOp(model, "loss", outputs={"total": "first total"}))
        optimizer = BY_NAME.SGD(0.1)
        data = [{"x": tf.constant([[1.0, -2.0], [0.5, 3.0]]) * scale} for scale in (1.0, 0.1, 2.0)]
        for batch, result in zip(data, train(TFNetwork(ops), data, eager), strict=True):
            with tf.GradientTape(persistent=True) as tape:
                plain = tf.reduce_mean(tf.square(twin(batch["x"], training=True)))
                whole = plain + tf.add_n(twin.losses)
            losses = {"never": [plain], "by the program": [whole]}.get(added, [whole, plain])
            each = [tape.gradient(loss, twin.trainable_variables) for loss in losses]
            for gradients in each:
                optimizer.apply_gradients(zip(gradients, twin.trainable_variables, strict=True))
            np.testing.assert_allclose(result["total"], losses[-1], rtol=1e-5)
            if len(losses) > 1:
                np.testing.assert_allclose(result["first total"], whole, rtol=1e-5)
        assert_close(model, twin)

    @pytest.mark.parametrize("merge", [1, 2])
    def test_are_part_of_the_total(self, eager: bool, merge: int) -> None:
        model, twin = twins(regularized)
        ops = regression(made(model, sgd()), merge_grad=merge, outputs={"total": "total"})
        data = [{"x": tf.constant([[1.0, -2.0], [0.5, 3.0]]) * scale} for scale in (1.0, 0.1)]
        totals = [result["total"] for result in train(TFNetwork(ops), data[:1], eager)]
        totals += [
            result["total"] for result in train(TFNetwork(ops), data[1:], eager, warmup=True)
        ]
        first = to_zero(twin(data[0]["x"]), {}) + tf.add_n(twin.losses)
        if merge == 1:
            loop(twin, BY_NAME.SGD(0.1), data[:1], to_zero)
        second = to_zero(twin(data[1]["x"]), {}) + tf.add_n(twin.losses)
        np.testing.assert_allclose(totals, [first, second], rtol=1e-5)

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

    def test_in_mixed_precision(self, eager: bool) -> None:
        """Some of them are float16, others float32."""
        model = build(regularized, sgd(), mixed_precision=True)
        twin = build(regularized, sgd(), mixed_precision=True)
        twin.set_weights(model.get_weights())
        data = [{"x": tf.constant([[1.0, -2.0], [0.5, 3.0]])}] * 3
        train(TFNetwork(regression(model)), data, eager)
        loop(twin, twin.optimizer, data, to_zero)
        # half precision rounds otherwise wherever a graph computes in another order
        assert_close(model, twin, 3e-3)


@EITHER_WAY
def test_merging_while_layers_are_frozen_between(eager: bool) -> None:
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


@EITHER_WAY
@ALL_KINDS
@pytest.mark.parametrize("defer", [False, True])
def test_given_gradients_are_not_scaled_down(eager: bool, kind: Any, defer: bool) -> None:
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


@EITHER_WAY
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

    def test_a_step_that_overflows_is_skipped(self, eager: bool) -> None:
        kind, merge = KINDS[-1], 2
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

    @pytest.mark.skipif(not KERAS_3, reason="Keras 2 has no loss_scale_factor")
    def test_a_loss_scale_factor(self, eager: bool) -> None:
        model, twin = twins(mlp)
        data = batches(4)
        model = made(model, lambda: BY_NAME.SGD(0.1, loss_scale_factor=1024.0))
        train(TFNetwork(supervised(model, merge_grad=2)), data, eager)
        loop(twin, BY_NAME.SGD(0.1), data, classify, 2)
        assert_close(model, twin)

    @pytest.mark.skipif(not KERAS_3, reason="Keras 2 unscales gradients before they are merged")
    @pytest.mark.parametrize("rest", ["carry", "flush"])
    def test_several_scales_in_one_window(self, eager: bool, rest: str) -> None:
        model, twin = twins(mlp)
        data = batches(4)
        model = made(model, lambda: SCALING.LossScaleOptimizer(BY_NAME.SGD(0.1), 1024.0))
        merge = 4 if rest == "carry" else 5
        network = TFNetwork(supervised(model, merge_grad=merge, clip_norm=9.0, rest=rest))
        with network("train", 1, eager=eager):
            for batch, scale in zip(data, (1024.0, 8.0, 65536.0, 2.0), strict=True):
                model.optimizer.dynamic_scale.assign(scale)
                network.run_step(batch)
        loop(twin, BY_NAME.SGD(0.1), data, classify, 4)
        assert_close(model, twin)


def scale_of(optimizer: Any) -> float:
    scale = optimizer.dynamic_scale if KERAS_3 else optimizer.loss_scale
    return float(tf.convert_to_tensor(scale))


def late() -> Any:
    return keras.Sequential([layers.Dense(5), layers.Dense(3)])


@EITHER_WAY
@ALL_KINDS
@pytest.mark.parametrize("make", [mlp, late])
def test_frozen_layers_that_are_thawed_later(eager: bool, kind: Any, make: Any) -> None:
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
    # By hand; steps are counted from the first one, as by the optimizer.
    optimizer = kind.Adam(0.01)
    if hasattr(optimizer, "build"):
        twin.layers[0].trainable = True
        optimizer.build(twin.trainable_variables)
        twin.layers[0].trainable = False
    loop(twin, optimizer, data[:2], classify)
    twin.layers[0].trainable = True
    loop(twin, optimizer, data[2:], classify)
    assert_close(model, twin, 1e-4)


def embedding() -> Any:
    words = layers.Input((3,), dtype="int32")
    x = layers.Flatten()(layers.Embedding(9, 2)(words))
    return keras.Model(words, layers.Dense(3)(x))


@EITHER_WAY
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


def test_weights_that_are_not_trained_are_copied_or_averaged() -> None:
    def make() -> Any:
        return keras.Sequential([layers.Input((6,)), layers.BatchNormalization(), layers.Dense(3)])

    for use_buffers in (False, True):
        model = build(make, sgd())
        ema = EMA(model, decay=0.5, use_buffers=use_buffers)
        network = TFNetwork([*supervised(model), ema])
        train(network, batches(1))
        before = [one.numpy() for one in model.non_trainable_weights]
        train(network, batches(1, seed=1))
        after = [one.numpy() for one in model.non_trainable_weights]
        means = [one.numpy() for one in ema.averaged.weights if "moving" in one.name]
        for mean, one, other in zip(means, before, after, strict=True):
            expected = (one + other) / 2 if use_buffers else other
            np.testing.assert_allclose(mean, expected, rtol=1e-5)


@keras.utils.register_keras_serializable()
class Block(layers.Layer):
    """Has equal layers inside."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.first, self.second = layers.Dense(6), layers.Dense(6)

    def call(self, x: Any) -> Any:
        return self.second(self.first(x))


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "static"])
def test_average_of_frozen_layers(eager: bool) -> None:
    """Keras 2 lists the weights of a frozen layer after those of the next one."""

    def inside(model: Any) -> list[Any]:
        block, last = model.layers[-2:]
        every = [*block.first.get_weights(), *block.second.get_weights(), *last.get_weights()]
        return [np.array(one) for one in every]

    model = build(lambda: keras.Sequential([layers.Input((6,)), Block(), layers.Dense(3)]), sgd())
    ema = EMA(model, decay=0.5)
    network = TFNetwork([*supervised(model), ema])
    train(network, batches(1), eager)
    means = inside(model)
    model.layers[-2].first.trainable = False
    for batch in batches(3, seed=1):
        train(network, [batch], eager)
        now = inside(model)
        # Weights that are not trained are copied.
        means[:2] = now[:2]
        means[2:] = [(one + other) / 2 for one, other in zip(means[2:], now[2:], strict=True)]
    for own, mean in zip(inside(ema.averaged), means, strict=True):
        np.testing.assert_allclose(own, mean, rtol=1e-5, atol=1e-7)


@pytest.mark.skipif(not KERAS_3, reason="optimizers of Keras 2 accumulate nothing")
@EITHER_WAY
@pytest.mark.parametrize("scales", [False, True])
@pytest.mark.parametrize("defer", [False, True])
@pytest.mark.parametrize("merge", [1, 2])
def test_an_optimizer_that_accumulates(eager: bool, scales: bool, defer: bool, merge: int) -> None:
    """A step is one in which `iterations` goes on, for what follows it, too."""
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)
    used = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=8) if scales else optimizer
    model = build(mlp, lambda: used)
    ema = EMA(model, decay=0.5)
    settings = {"outputs": {"stepped": "stepped"}, "defer": defer, "merge_grad": merge}
    network = TFNetwork([*supervised(model, **settings), ema])
    means: Any = None
    data = batches(8 * merge)
    if scales:
        data[0] = {**data[0], "x": data[0]["x"] * float("inf")}
    with network("train", 1, eager=eager):
        for batch in data:
            before = int(optimizer.iterations)
            stepped = bool(network.run_step(batch)["stepped"])
            assert stepped == (int(optimizer.iterations) > before)
            now = weights(model)
            if stepped:
                means = (
                    now if means is None else [(a + b) / 2 for a, b in zip(means, now, strict=True)]
                )
    assert ema.state_dict()["updates"] == int(optimizer.iterations) == 2
    for own, mean in zip(weights(ema.averaged), means, strict=True):
        np.testing.assert_allclose(own, mean, rtol=1e-5, atol=1e-7)


@pytest.mark.skipif(not KERAS_3, reason="optimizers of Keras 2 accumulate nothing")
@EITHER_WAY
@pytest.mark.parametrize("merge", [1, 2])
def test_deferred_calls_of_an_optimizer_that_accumulates(eager: bool, merge: int) -> None:
    """Each reports whether it will be the third call of the optimizer."""
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)
    model = build(mlp, lambda: optimizer)
    first, loss, _ = supervised(model)
    updates = [
        UpdateOp(model, "loss", defer=True, merge_grad=count, outputs={"stepped": key})
        for key, count in (("a", merge), ("b", 1))
    ]
    calls, network = 0, TFNetwork([first, loss, *updates])
    for number, result in enumerate(train(network, batches(6), eager), 1):
        for key, is_call in (("a", number % merge == 0), ("b", True)):
            calls += is_call
            assert bool(result[key]) == (is_call and calls % 3 == 0)
    assert int(optimizer.iterations) == calls // 3


@EITHER_WAY
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("repeat", [2, 3])
def test_deferred_window_that_is_full_before_last_run(
    eager: bool, weighted: bool, repeat: int
) -> None:
    """The gradients of a step are the same in each run, and its last runs begin a new window."""
    model, twin = twins(mlp)
    momentum = BY_NAME.SGD(0.1, momentum=0.9)
    model = made(model, lambda: momentum)
    settings = {"weight": "weight"} if weighted else {"merge_grad": 2}
    merge = 1 if weighted else 2
    first, loss, update = supervised(model, defer=True, clip_norm=0.1, **settings)
    data = [{**batch, "weight": tf.constant(2.0)} for batch in batches(3)]
    train(TFNetwork([first, loss, Repeat(update, repeat)]), data, eager)
    optimizer, merged = BY_NAME.SGD(0.1, momentum=0.9), []
    for batch in data:
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(classify(twin(batch["x"]), batch))
        gradients = tape.gradient(value, twin.trainable_variables)
        due = []
        for _ in range(repeat):
            merged.append(gradients)
            if len(merged) == merge:
                due.append([sum(each) / merge for each in zip(*merged, strict=True)])
                merged = []
        for averages in due:
            clipped, _ = tf.clip_by_global_norm(averages, 0.1)
            optimizer.apply_gradients(zip(clipped, twin.trainable_variables, strict=True))
    assert int(momentum.iterations) == int(optimizer.iterations)
    assert update.state_dict()["merged"] == len(merged)
    assert_close(model, twin, 1e-4)


@EITHER_WAY
@pytest.mark.parametrize("scales", [False, True])
@pytest.mark.parametrize("place", ["both deferred", "second at once", "update_model"])
def test_deferred_updates_take_steps_of_their_own(eager: bool, scales: bool, place: str) -> None:
    """Each clips by its own norm, also if the loss scale grows with each step."""
    if scales and not KERAS_3:
        pytest.skip("optimizers of Keras 2 unscale gradients outside of them")
    model, twin = twins(mlp)

    def optimizer() -> Any:
        sgd = BY_NAME.SGD(0.1)
        options = {"initial_scale": 8.0, "dynamic_growth_steps": 1}
        return SCALING.LossScaleOptimizer(sgd, **options) if scales else sgd

    model = made(model, optimizer)
    ones = [tf.ones(one.shape) for one in model.trainable_variables]

    class Ones(TensorOp):
        def forward(self, data: Any, state: Any) -> None:
            update_model(model, ones, True, state["deferred"])

    first, loss, update = supervised(model, defer=True, clip_norm=0.1, outputs={"grad_norm": "a"})
    other = LambdaOp(lambda y: tf.reduce_mean(y**2), "y", "other")
    second: Any = UpdateOp(
        model,
        "other",
        defer=place == "both deferred",
        clip_norm=0.2,
        outputs={"grad_norm": "b"},
    )
    if place == "update_model":
        second = Ones()
    network = TFNetwork([first, loss, other, update, second])
    data = batches(3)
    results = train(network, data, eager)
    for batch, result in zip(data, results, strict=True):
        with tf.GradientTape(persistent=True) as tape:
            y = twin(batch["x"])
            losses = tf.reduce_mean(classify(y, batch)), tf.reduce_mean(y**2)
        for key, value, limit in zip("ab", losses, (0.1, 0.2), strict=True):
            gradients = tape.gradient(value, twin.trainable_variables)
            if place == "update_model" and key == "b":
                gradients, norm = ones, None
            else:
                gradients, norm = tf.clip_by_global_norm(gradients, limit)
                np.testing.assert_allclose(result[key], norm, rtol=1e-4)
            for variable, gradient in zip(twin.trainable_variables, gradients, strict=True):
                variable.assign_sub(0.1 * gradient)
    assert_close(model, twin, 1e-4)


def test_what_is_for_torch_is_refused() -> None:
    model = build(mlp, sgd(), model_name="m")
    with pytest.raises(ValueError, match=r"ModelOp.*'m'.*`trainable = False`.*trainable=False"):
        ModelOp(model, "x", "y", eval_layers="dense")
    with pytest.raises(ValueError, match=r"LRSchedule.*'m'.*'tf'.*learning_rate"):
        LRSchedule(model, lambda optimizer: optimizer)
    network = TFNetwork([LambdaOp(lambda x: x, "x", "y")])
    with pytest.raises(TypeError, match="transform got device='cuda', which is for torch"):
        network.transform({"x": np.ones(1)}, "infer", device="cuda")


def test_a_model_without_weights_has_no_average() -> None:
    model = build(lambda: keras.Sequential([layers.Dense(3)]), None, model_name="m")
    with pytest.raises(ValueError, match=r"'m'.*EMA.*build\(shape\)"):
        EMA(model)


def test_loaded_window_has_no_sum_of_a_variable_that_is_frozen_now() -> None:
    def make() -> Any:
        return keras.Sequential([layers.Input((2,)), layers.Dense(2), layers.Dense(1)])

    model = made(make(), sgd(1.0), model_name="m")
    first, second = model.layers[-2:]
    update = UpdateOp(model, "loss", merge_grad=2)
    loss = LambdaOp(lambda y: tf.reduce_mean(y), "y", "loss")
    network = TFNetwork([ModelOp(model, "x", "y"), loss, update])

    def step() -> None:
        with network("train"):
            network.run_step(X)

    first.trainable = False
    step()
    saved = update.state_dict()
    step()  # An update of the second layer, which empties the window.
    first.trainable = True
    step()  # The sums of both layers.
    first.trainable = False
    update.load_state_dict(saved)
    first.trainable = True
    before = first.kernel.numpy()
    expected = before - np.ones((2, 2)) * second.kernel.numpy()[:, 0] / 2
    step()
    np.testing.assert_allclose(first.kernel.numpy(), expected, rtol=1e-5)
