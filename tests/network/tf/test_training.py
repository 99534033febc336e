"""Steps of Keras models are those of a loop that is written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.keras_models import (
    KERAS_3,
    KINDS,
    Batch,
    assert_close,
    batches,
    classify,
    infer,
    keras,
    layers,
    line,
    mlp,
    regression,
    same_weights,
    supervised,
    tf,
    to_zero,
    train,
    twins,
    variables_of,
    weights,
)
from tests.network.tf_programs import EITHER_WAY, FITS, Doing, ones

pytestmark = pytest.mark.tf

OPTIMIZERS = {
    f"{kind.__name__.rpartition('.')[2]}-{name}": make
    for kind in KINDS
    for name, make in {
        "sgd": lambda kind=kind: kind.SGD(0.1, momentum=0.9, nesterov=True),
        "adam": lambda kind=kind: kind.Adam(0.01, clipnorm=0.1),
    }.items()
}
SIZES = (8, 5, 3)


def of_sizes(sizes: Iterable[int] = SIZES) -> list[Batch]:
    """Return batches of these sizes."""
    return [batches(1, size, seed)[0] for seed, size in enumerate(sizes)]


def by_hand(
    model: Any,
    optimizer: Any,
    data: Iterable[Batch],
    loss_of: Callable[[Any, Batch], Any],
    eager: bool = False,
) -> list[Any]:
    """Train a model in a loop, whose step is a graph unless it is to be eager."""

    def step(x: Any, t: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(loss_of(model(x, training=True), {"t": t}))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    data = list(data)
    if data and not eager:
        specs = [
            tf.TensorSpec([None, *batch.shape[1:]], batch.dtype)
            for batch in (data[0]["x"], data[0]["t"])
        ]
        step = tf.function(step, input_signature=specs)
    return [step(batch["x"], batch["t"]).numpy() for batch in data]


def normed() -> Any:
    """Return a network of (batch, 6) -> (batch, 3) that differs between training and evaluation."""
    return keras.Sequential(
        [layers.Input((6,)), layers.Dense(5), layers.BatchNormalization(), layers.Dense(3)]
    )


class TestLikeALoop:
    @EITHER_WAY
    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_to_the_bit(self, optimizer: str, eager: bool) -> None:
        make = OPTIMIZERS[optimizer]
        model, twin = twins(mlp)
        fastnet.build(lambda: model, make)
        results = train(TFNetwork(supervised(model)), of_sizes(), eager=eager)
        wanted = by_hand(twin, make(), of_sizes(), classify, eager)
        assert [result["loss"].numpy() for result in results] == wanted
        assert same_weights(model, twin)

    @EITHER_WAY
    def test_layers_that_know_of_training(self, eager: bool) -> None:
        model, twin = twins(normed)
        fastnet.build(lambda: model, "adam")
        network = TFNetwork(supervised(model))
        train(network, of_sizes(), eager=eager)
        by_hand(twin, model_optimizer("adam"), of_sizes(), classify, eager)
        assert_close(model, twin)
        (batch,) = batches(1, seed=9)
        before = weights(model)
        result = infer(network, batch, "eval", eager)
        np.testing.assert_allclose(result["y"], twin(batch["x"], training=False), rtol=1e-5)
        assert same_weights(model, before)

    def test_eager_and_static_are_one_network(self) -> None:
        model, twin = twins(mlp)
        fastnet.build(lambda: model, "adam")
        network = TFNetwork(supervised(model))
        data = of_sizes()
        for place, batch in enumerate(data):
            train(network, [batch], eager=bool(place % 2))
        by_hand(twin, model_optimizer("adam"), data, classify)
        assert_close(model, twin)
        assert len(network.traces) == 2

    def test_two_models_with_losses_of_each_other(self) -> None:
        (first, one), (second, two) = twins(mlp, 1), twins(mlp, 2)
        fastnet.build(lambda: first, lambda: keras.optimizers.SGD(0.1), model_name="first")
        fastnet.build(lambda: second, lambda: keras.optimizers.SGD(0.2), model_name="second")
        ops = [
            ModelOp(first, "x", "a"),
            ModelOp(second, "x", "b"),
            LambdaOp(lambda a, b: tf.reduce_mean((a - b) ** 2), ["a", "b"], "loss"),
            UpdateOp(first, "loss"),
            UpdateOp(second, "loss"),
        ]
        train(TFNetwork(ops), of_sizes())
        optimizers = keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.2)
        for batch in of_sizes():
            with tf.GradientTape(persistent=True) as tape:
                loss = tf.reduce_mean((one(batch["x"]) - two(batch["x"])) ** 2)
            for twin, optimizer in zip((one, two), optimizers, strict=True):
                gradients = tape.gradient(loss, twin.trainable_variables)
                optimizer.apply_gradients(zip(gradients, twin.trainable_variables, strict=True))
        assert_close(first, one)
        assert_close(second, two)

    @EITHER_WAY
    def test_a_model_whose_variables_come_with_its_first_batch(self, eager: bool) -> None:
        model = keras.Sequential([layers.Dense(5, activation="tanh"), layers.Dense(3)])
        fastnet.build(lambda: model, "adam")
        assert not model.built
        network = TFNetwork(supervised(model))
        data = of_sizes()
        keras.utils.set_random_seed(3)
        train(network, data, eager=eager)
        keras.utils.set_random_seed(3)
        twin = keras.Sequential([layers.Dense(5, activation="tanh"), layers.Dense(3)])
        by_hand(twin, model_optimizer("adam"), data, classify, eager)
        # one more opening: what came with the first batch is no change of the model
        train(network, data[:1], eager=eager)
        by_hand(twin, model_optimizer("adam"), [], classify)
        assert len(network.traces) == (0 if eager else 2)
        assert len(variables_of(model.current_optimizer)) >= 2 * len(model.trainable_variables)
        assert len(weights(model)) == len(weights(twin)) == 4

    def test_what_is_summed_up_by_hand_is_summed_up_by_merge_grad(self) -> None:
        model, twin = twins(mlp)
        fastnet.build(lambda: model, lambda: keras.optimizers.SGD(0.1))
        data = of_sizes([4] * 6)
        train(TFNetwork(supervised(model, merge_grad=3)), data)
        joined = [
            {key: tf.concat([batch[key] for batch in part], axis=0) for key in ("x", "t")}
            for part in (data[:3], data[3:])
        ]
        by_hand(twin, keras.optimizers.SGD(0.1), joined, classify)
        assert_close(model, twin)

    @pytest.mark.skipif(KERAS_3, reason="Keras 3 lets no AutoGraph into its models")
    def test_a_keras_model_with_conditions_over_tensors(self) -> None:
        class Choosing(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.dense = layers.Dense(3)

            def call(self, x: Any, training: bool = False) -> Any:
                y = self.dense(x)
                if tf.reduce_sum(x) > 0:
                    y = 2 * y
                else:
                    y = -y
                return y

        model = Choosing()
        model(ones(1, 6))
        fastnet.build(lambda: model, "sgd")
        network = TFNetwork(ModelOp(model, "x", "y"))
        x = ones(4, 6)
        np.testing.assert_allclose(infer(network, {"x": x})["y"], 2 * model.dense(x), rtol=1e-6)
        np.testing.assert_allclose(infer(network, {"x": -x})["y"], -model.dense(-x), rtol=1e-6)
        assert len(network.traces) == 1


def model_optimizer(name: str) -> Any:
    """Return the optimizer that `build` makes of a name."""
    model = fastnet.build(line, name, model_name="spare")
    return type(model.optimizer).from_config(model.optimizer.get_config())


class TestTape:
    @EITHER_WAY
    def test_is_there_only_where_an_op_takes_gradients(self, eager: bool) -> None:
        seen: dict[str, Any] = {}

        def look(data: Any, state: Any) -> Any:
            seen[state["mode"]] = state["tape"]
            assert state["req_grad"] is (state["mode"] == "train")
            return data

        model = fastnet.build(line, "sgd")
        network = TFNetwork([Doing(look, "x", "x"), *regression(model, mode="train")])
        for mode in ("train", "eval", "test", "infer"):
            infer(network, {"x": ones(3, 2)}, mode, eager)
        assert isinstance(seen.pop("train"), tf.GradientTape)
        assert seen == {"eval": None, "test": None, "infer": None}

    @EITHER_WAY
    def test_is_not_there_in_a_warm_up_of_ops_that_take_none(self, eager: bool) -> None:
        def look(data: Any, state: Any) -> Any:
            assert state["tape"] is None
            assert state["warmup"]
            return data

        network = TFNetwork(Doing(look, "x", "y"))
        with network(mode="train", epoch=1, warmup=True, eager=eager):
            assert network.run_step({"x": 1})["y"] == 1

    @EITHER_WAY
    def test_an_op_can_take_gradients_of_its_own(self, eager: bool) -> None:
        class Slope(TensorOp):
            def forward(self, data: Any, state: Any) -> Any:
                x, y = data
                return state["tape"].gradient(y, x)

            def fe_retain_graph(self, retain: bool | None = None) -> bool | None:
                return True

        ops = [
            Doing(lambda data, state: state["tape"].watch(data), "x"),
            LambdaOp(lambda x: x**3, "x", "y"),
            Slope(["x", "y"], "slope"),
        ]
        result = infer(TFNetwork(ops), {"x": tf.constant([1.0, 2.0])}, eager=eager)
        assert result["slope"].numpy().tolist() == [3.0, 12.0]

    @EITHER_WAY
    def test_a_model_that_gives_no_gradients_gets_none(self, eager: bool) -> None:
        (first, _), (second, two) = (
            twins(mlp, 1),
            twins(lambda: keras.Sequential([layers.Input((3,)), layers.Dense(3)]), 2),
        )
        fastnet.build(lambda: first, "sgd", model_name="first")
        fastnet.build(lambda: second, "sgd", model_name="second")
        ops = [
            ModelOp(first, "x", "h", trainable=False, gradients=False),
            ModelOp(second, "h", "y"),
            CrossEntropy(("y", "t"), "loss", from_logits=True),
            UpdateOp(second, "loss"),
        ]
        before = weights(first)
        train(TFNetwork(ops), of_sizes(), eager=eager)
        assert same_weights(first, before)
        assert not same_weights(second, two)


class TestWarmup:
    @EITHER_WAY
    def test_updates_nothing(self, eager: bool) -> None:
        model, twin = twins(mlp)
        fastnet.build(lambda: model, "adam")
        network = TFNetwork(supervised(model))
        data = of_sizes()
        with network(mode="train", epoch=1, warmup=True, eager=eager):
            warm = [network.run_step(batch)["loss"].numpy() for batch in data]
        assert same_weights(model, twin)
        result = train(network, data[:1], eager=eager)
        assert result[0]["loss"].numpy() == warm[0]
        assert not same_weights(model, twin)
        assert [trace.reason for trace in network.traces] == (
            []
            if eager
            else [
                "first step in mode 'train', warming up",
                f"'t' has the shape (5), where (8) was traced{FITS}",
                "first step in mode 'train'",
            ]
        )


class TestEpoch:
    @EITHER_WAY
    def test_is_a_tensor(self, eager: bool) -> None:
        seen: list[Any] = []

        def scale(data: Any, state: Any) -> Any:
            seen.append(state["epoch"])
            return data * tf.cast(state["epoch"], "float32")

        network = TFNetwork(Doing(scale, "x", "y"))
        for epoch in (1, 2, 3, 1000):
            with network(mode="infer", epoch=epoch, eager=eager):
                assert network.run_step({"x": ones(2)})["y"].numpy().tolist() == [epoch] * 2
        assert len(seen) == (4 if eager else 1)
        assert all(tf.is_tensor(epoch) and epoch.dtype == tf.int32 for epoch in seen)
        assert all(epoch.shape == () for epoch in seen)

    @pytest.mark.parametrize("epoch", [np.int64(3), np.array(3), tf.constant(3, tf.int64)])
    def test_may_be_any_integer(self, epoch: Any) -> None:
        network = TFNetwork(Doing(lambda x, state: state["epoch"] * 2, None, "y"))
        for eager in (False, True):
            with network(mode="infer", epoch=epoch, eager=eager):
                assert network.run_step({})["y"].numpy() == 6

    def test_a_scale_of_the_loss_follows_it(self) -> None:
        model, twin = twins(line)
        fastnet.build(lambda: model, lambda: keras.optimizers.SGD(0.1))
        ops = [
            ModelOp(model, "x", "y"),
            Doing(
                lambda y, state: tf.reduce_mean(y**2) / tf.cast(state["epoch"], "float32"),
                "y",
                "loss",
            ),
            UpdateOp(model, "loss"),
        ]
        network = TFNetwork(ops)
        x = tf.random.stateless_normal((4, 2), (1, 2))
        optimizer = keras.optimizers.SGD(0.1)
        for epoch in range(1, 5):
            train(network, [{"x": x}], epoch=epoch)
            by_hand(
                twin,
                optimizer,
                [{"x": x, "t": x}],
                lambda y, batch, epoch=epoch: to_zero(y, batch) / epoch,
                eager=True,
            )
        assert_close(model, twin)
        assert len(network.traces) == 1
