"""Steps spread over several devices: a process has these only if it asks for them in time."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import Delete, LambdaOp, TensorOp
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from fastnet.slicer import AxisSlicer, MeanUnslicer, Slicer, SlidingSlicer
from tests import own_process
from tests.containers import Labels, Picky, Point, Registry, Store

pytestmark = [pytest.mark.tf, pytest.mark.slow, pytest.mark.own_process]

keras = tf.keras
KERAS_3 = hasattr(keras, "ops")

DEVICES = ["/device:CPU:0", "/device:CPU:1"]

if own_process.is_here():
    # fastnet is imported by now, and has not started TensorFlow
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
    STRATEGY = tf.distribute.MirroredStrategy(DEVICES)
    ALL_THREE = tf.distribute.MirroredStrategy([*DEVICES, "/device:CPU:2"])

EITHER_WAY = pytest.mark.parametrize("eager", [False, True], ids=["static", "eager"])


@contextmanager
def under(strategy: tf.distribute.Strategy | None) -> Iterator[None]:
    before = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
    tf.distribute.experimental_set_strategy(strategy)
    try:
        yield
    finally:
        tf.distribute.experimental_set_strategy(before)


@pytest.fixture
def two() -> Iterator[None]:
    with under(STRATEGY):
        yield


@pytest.fixture(autouse=True)
def strategies_are_put_back() -> Iterator[None]:
    keras.utils.set_random_seed(1)
    yield
    assert not tf.distribute.has_strategy()
    assert tf.get_logger().level == logging.NOTSET


def test_devices_can_be_set_up_after_the_import() -> None:
    assert len(tf.config.list_logical_devices("CPU")) == 3


def parts(*values: Any) -> Any:
    """Make a distributed value."""
    assert len(values) == 2
    return STRATEGY.experimental_distribute_values_from_function(
        lambda context: tf.convert_to_tensor(values[context.replica_id_in_sync_group])
    )


def halves(value: Any, first: int | None = None) -> Any:
    """Make a distributed value of an array, of which the first device gets the first rows."""
    first = (len(value) + 1) // 2 if first is None else first
    return parts(value[:first], value[first:])


def plain(result: dict[str, Any]) -> dict[str, Any]:
    """Check that all of a result is plain, and take its arrays."""

    def check(value: Any) -> Any:
        assert not isinstance(value, tf.distribute.DistributedValues)
        return value.numpy() if tf.is_tensor(value) else value

    return {key: tf.nest.map_structure(check, value) for key, value in result.items()}


# ---------------------------------------------------------------------- training


def mlp(regularizer: Any = None) -> Any:
    return keras.Sequential(
        [
            keras.layers.Input((3,)),
            keras.layers.Dense(4, activation="tanh", kernel_regularizer=regularizer),
            keras.layers.Dense(2, use_bias=False),
        ]
    )


def numbers(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 3)).astype("float32")
    return x, np.stack([x[:, 0] * x[:, 1], x.sum(axis=1)], axis=1)


def regression(model: Any, **settings: Any) -> list[Any]:
    return [
        ModelOp(model, "x", "y_pred"),
        MeanSquaredError(("y_pred", "y"), "loss"),
        UpdateOp(model, "loss", **settings),
    ]


def same_model(model: Any, make: Callable[[], Any]) -> Any:
    """Make a model on one device, with the weights of another one."""
    with under(None):
        twin = make()
    for mine, other in zip(twin.weights, model.weights, strict=True):
        mine.assign(value_of(other))
    return twin


def copies_of(variable: Any) -> list[np.ndarray]:
    """Read a variable on each device that it is on."""
    # Keras 3 has variables of its own around those of TensorFlow
    inner = variable if isinstance(variable, tf.Variable) else variable.value
    return [copy.numpy() for copy in getattr(inner, "values", [inner])]


def value_of(variable: Any) -> np.ndarray:
    """Read a variable that is the same on all devices."""
    first, *others = copies_of(variable)
    for copy in others:
        np.testing.assert_array_equal(copy, first)
    return first


def assert_same_weights(model: Any, other: Any, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    assert len(model.weights) == len(other.weights) > 0
    for one, two in zip(model.weights, other.weights, strict=True):
        np.testing.assert_allclose(value_of(one), value_of(two), rtol=rtol, atol=atol)


def sgd() -> Any:
    return keras.optimizers.SGD(0.1)


def momentum() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9)


def adam() -> Any:
    return keras.optimizers.Adam(0.01)


def square_error(model: Any, x: Any, y: Any) -> tf.Tensor:
    return tf.reduce_mean((model(x, training=True) - y) ** 2)


def by_hand(
    model: Any, optimizer: Any, loss_of: Callable[[Any, Any], tf.Tensor], steps: Sequence[Any]
) -> list[float]:
    """Train a model on one device."""
    losses = []
    for x, y in steps:
        with tf.GradientTape() as tape:
            loss = loss_of(x, y)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        losses.append(float(loss))
    return losses


STEPS = [numbers(size, seed) for seed, size in enumerate([8, 8, 4, 6, 8])]


class TestTraining:
    @pytest.mark.parametrize(
        ("optimizer", "eager"),
        [("sgd", False), (momentum, False), (momentum, True), ("adam", False), (adam, True)],
    )
    def test_two_devices_train_as_one_does_on_the_whole_batch(
        self, optimizer: Any, eager: bool
    ) -> None:
        with under(STRATEGY):
            model = fastnet.build(mlp, optimizer)
            twin = same_model(model, mlp)
            network = fastnet.Network(ops=regression(model))
            assert isinstance(network, TFNetwork)
            losses = []
            for epoch in (1, 2):
                with network(mode="train", epoch=epoch, eager=eager):
                    for x, y in STEPS:
                        result = network.run_step({"x": halves(x), "y": halves(y)})
                        losses.append(float(result["loss"]))
                        np.testing.assert_array_equal(result["x"], x)
                        assert result["y_pred"].shape == y.shape
        assert len(network.traces) == (0 if eager else 2)
        make = {"sgd": lambda: keras.optimizers.SGD(0.01), "adam": keras.optimizers.Adam}
        expected = by_hand(
            twin,
            make.get(optimizer, optimizer)(),
            lambda x, y: square_error(twin, x, y),
            STEPS * 2,
        )
        np.testing.assert_allclose(losses, expected, rtol=1e-4)
        assert_same_weights(model, twin)
        assert value_of(model.current_optimizer.iterations) == len(losses)

    @EITHER_WAY
    @pytest.mark.parametrize("first", [5, 8], ids=["5 and 3", "8 and none"])
    def test_each_device_counts_alike_whatever_its_part(self, first: int, eager: bool) -> None:
        with under(STRATEGY):
            model = fastnet.build(mlp, momentum)
            twin = same_model(model, mlp)
            network = TFNetwork(regression(model))
            losses = []
            with network(mode="train", epoch=1, eager=eager):
                for x, y in STEPS[:2]:
                    result = network.run_step({"x": halves(x, first), "y": halves(y, first)})
                    assert result["y_pred"].shape == y.shape
                    losses.append(float(result["loss"]))

        def loss_of(x: Any, y: Any) -> tf.Tensor:
            means = [square_error(twin, x[:first], y[:first])]
            if first < len(x):
                means.append(square_error(twin, x[first:], y[first:]))
            heard.append(float(sum(means)) / len(means))
            return sum(means) / 2

        heard: list[float] = []
        by_hand(twin, momentum(), loss_of, STEPS[:2])
        np.testing.assert_allclose(losses, heard, rtol=1e-4)
        assert_same_weights(model, twin)

    @EITHER_WAY
    def test_plain_batches_are_everybodys(self, two: None, eager: bool) -> None:
        model = fastnet.build(mlp, sgd)
        twin = same_model(model, mlp)
        network = TFNetwork(regression(model))
        x, y = STEPS[0]
        with network(mode="train", epoch=1, eager=eager):
            result = network.run_step({"x": tf.constant(x), "y": y})
        assert result["y_pred"].shape == (16, 2)
        with under(None):
            expected = by_hand(twin, sgd(), lambda x, y: square_error(twin, x, y), [(x, y)])
        np.testing.assert_allclose(result["loss"], expected[0], rtol=1e-5)
        assert_same_weights(model, twin)

    @EITHER_WAY
    def test_given_gradients_are_averaged(self, eager: bool) -> None:
        class Gradients(TensorOp):
            def forward(self, data: Any, state: Any) -> Any:
                return state["tape"].gradient(data, model.trainable_variables)

        with under(STRATEGY):
            model = fastnet.build(mlp, sgd)
            twin = same_model(model, mlp)
            ops = [*regression(model, gradients="g")[:2], Gradients("loss", "g")]
            network = TFNetwork([*ops, UpdateOp(model, "loss", gradients="g")])
            with network(mode="train", epoch=1, eager=eager, desired_output_keys=["loss"]):
                for x, y in STEPS:
                    network.run_step({"x": halves(x), "y": halves(y)})
        by_hand(twin, sgd(), lambda x, y: square_error(twin, x, y), STEPS)
        assert_same_weights(model, twin)

    @EITHER_WAY
    def test_two_models_one_through_the_other(self, eager: bool) -> None:
        def make_both() -> list[Any]:
            return [mlp(), keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(2)])]

        with under(STRATEGY):
            front, back = fastnet.build(make_both, [sgd, adam])
            twins = [
                same_model(model, lambda place=place: make_both()[place])
                for place, model in enumerate((front, back))
            ]
            ops = [
                ModelOp(front, "x", "z"),
                ModelOp(back, "z", "y_pred"),
                MeanSquaredError(("y_pred", "y"), "loss"),
                MeanSquaredError(("z", "y"), "front_loss"),
                UpdateOp(front, "front_loss", defer=True),
                UpdateOp(back, "loss"),
            ]
            network = TFNetwork(ops)
            with network(mode="train", epoch=1, eager=eager):
                for x, y in STEPS:
                    network.run_step({"x": halves(x), "y": halves(y)})
        optimizers = [sgd(), adam()]
        for x, y in STEPS:
            with tf.GradientTape(persistent=True) as tape:
                z = twins[0](x)
                losses = [tf.reduce_mean((z - y) ** 2), tf.reduce_mean((twins[1](z) - y) ** 2)]
            for twin, loss, optimizer in zip(twins, losses, optimizers, strict=True):
                gradients = tape.gradient(loss, twin.trainable_variables)
                optimizer.apply_gradients(zip(gradients, twin.trainable_variables, strict=True))
        assert_same_weights(front, twins[0])
        assert_same_weights(back, twins[1])

    @EITHER_WAY
    def test_losses_of_the_model_count_once(self, eager: bool) -> None:
        def make() -> Any:
            return mlp(keras.regularizers.L2(0.1))

        with under(STRATEGY):
            model = fastnet.build(make, sgd)
            twin = same_model(model, make)
            network = TFNetwork(regression(model))
            with network(mode="train", epoch=1, eager=eager):
                for x, y in STEPS:
                    network.run_step({"x": halves(x), "y": halves(y)})

        def loss_of(x: Any, y: Any) -> tf.Tensor:
            return square_error(twin, x, y) + tf.add_n(twin.losses)

        by_hand(twin, sgd(), loss_of, STEPS)
        assert_same_weights(model, twin)

    @EITHER_WAY
    def test_mixed_precision(self, eager: bool) -> None:
        with under(STRATEGY):
            model = fastnet.build(mlp, momentum, mixed_precision=True)
            twin = same_model(model, mlp)
            network = TFNetwork(regression(model))
            with network(mode="train", epoch=1, eager=eager):
                for x, y in STEPS:
                    result = network.run_step({"x": halves(x), "y": halves(y)})
                    assert np.isfinite(result["loss"])
        assert model.dtype_policy.name == "mixed_float16"
        assert value_of(model.current_optimizer.iterations) == len(STEPS)
        by_hand(twin, momentum(), lambda x, y: square_error(twin, x, y), STEPS)
        assert_same_weights(model, twin, rtol=0.01, atol=0.01)

    @EITHER_WAY
    def test_gradients_that_overflow_on_one_device_update_none(
        self, two: None, eager: bool
    ) -> None:
        model = fastnet.build(mlp, momentum, mixed_precision=True)
        before = [value_of(weight) for weight in model.weights]
        network = TFNetwork(regression(model))
        x, y = STEPS[0]
        with network(mode="train", epoch=1, eager=eager):
            network.run_step({"x": parts(x, x), "y": parts(y, 1e9 * y)})
            for weight, value in zip(model.weights, before, strict=True):
                np.testing.assert_array_equal(value_of(weight), value)
            network.run_step({"x": parts(x, x), "y": parts(y, y)})
        changes = [
            np.abs(value_of(weight) - value).max()
            for weight, value in zip(model.weights, before, strict=True)
        ]
        assert min(changes) > 0
        assert max(changes) < 1

    @EITHER_WAY
    def test_batch_normalization_counts_on_each_device_as_keras_has_it(
        self, two: None, eager: bool
    ) -> None:
        def make() -> Any:
            layers = [keras.layers.BatchNormalization(momentum=0.9), keras.layers.Dense(2)]
            return keras.Sequential([keras.layers.Input((3,)), *layers])

        model = fastnet.build(make, sgd)
        network = TFNetwork(regression(model))
        x, y = numbers(6, seed=1)
        seen = [x[:4], x[4:]]
        with network(mode="train", epoch=1, eager=eager):
            network.run_step({"x": halves(x, 4), "y": halves(y, 4)})
        mean, variance = map(copies_of, model.layers[0].non_trainable_weights[:2])
        for place, part in enumerate(seen):
            np.testing.assert_allclose(mean[place], 0.1 * part.mean(axis=0), rtol=1e-4)
            np.testing.assert_allclose(variance[place], 0.9 + 0.1 * part.var(axis=0), rtol=1e-4)
        with network(mode="eval", epoch=1, eager=eager):
            result = network.run_step({"x": halves(x, 4), "y": halves(y, 4)})
        gamma, beta, kernel, bias = map(value_of, model.trainable_weights)
        normal = [
            (part - mean[place]) / np.sqrt(variance[place] + 1e-3)
            for place, part in enumerate(seen)
        ]
        expected = (np.concatenate(normal) * gamma + beta) @ kernel + bias
        np.testing.assert_allclose(result["y_pred"], expected, rtol=1e-3, atol=1e-5)

    @EITHER_WAY
    def test_warming_up_trains_nothing(self, two: None, eager: bool) -> None:
        model = fastnet.build(mlp, sgd)
        before = [value_of(weight) for weight in model.weights]
        network = TFNetwork(regression(model))
        x, y = STEPS[0]
        with network(mode="train", epoch=1, warmup=True, eager=eager):
            result = network.run_step({"x": halves(x), "y": halves(y)})
        assert np.isfinite(result["loss"])
        for weight, value in zip(model.weights, before, strict=True):
            np.testing.assert_array_equal(value_of(weight), value)

    @EITHER_WAY
    @pytest.mark.parametrize("kind", ["class", "sequential"])
    def test_a_model_that_has_no_weights_yet(self, kind: str, eager: bool) -> None:
        class Lazy(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.dense = keras.layers.Dense(2, kernel_initializer="ones")

            def call(self, x: Any) -> Any:
                return self.dense(x)

        def make() -> Any:
            layer = keras.layers.Dense(2, kernel_initializer="ones")
            return Lazy() if kind == "class" else keras.Sequential([layer])

        with under(STRATEGY):
            model = fastnet.build(make, momentum)
            network = TFNetwork(regression(model))
            with network(mode="train", epoch=1, eager=eager):
                if KERAS_3:
                    # there each device would make variables of its own
                    x, y = STEPS[0]
                    with pytest.raises(ValueError, match="Input"):
                        network.run_step({"x": halves(x), "y": halves(y)})
                    return
                for x, y in STEPS:
                    network.run_step({"x": halves(x), "y": halves(y)})
        twin = make()
        twin(STEPS[0][0])
        by_hand(twin, momentum(), lambda x, y: square_error(twin, x, y), STEPS)
        assert_same_weights(model, twin)

    def test_another_optimizer_is_another_trace(self, two: None) -> None:
        model = fastnet.build(mlp, EpochScheduler({1: sgd, 2: adam}), model_name="m")
        network = TFNetwork(regression(model))
        x, y = STEPS[0]
        for epoch in (1, 2, 3):
            with network(mode="train", epoch=epoch):
                network.run_step({"x": halves(x), "y": halves(y)})
        assert [(trace.epoch, trace.reason) for trace in network.traces] == [
            (1, "first step in mode 'train'"),
            (2, "the model 'm' has another optimizer"),
        ]

    @EITHER_WAY
    @pytest.mark.parametrize("mixed", [False, True])
    def test_gradients_of_several_steps_are_merged(self, eager: bool, mixed: bool) -> None:
        with under(STRATEGY):
            model = fastnet.build(mlp, momentum, mixed_precision=mixed)
            twin = same_model(model, mlp)
            update = UpdateOp(model, "loss", merge_grad=2)
            network = TFNetwork([*regression(model)[:2], update])
            weights = [[value_of(one) for one in model.weights]]
            with network(mode="train", epoch=1, eager=eager, desired_output_keys=["loss"]):
                for x, y in STEPS:
                    network.run_step({"x": halves(x), "y": halves(y)})
                    weights.append([value_of(one) for one in model.weights])
            state = update.state_dict()
            times, sums = state["merged"], state["gradients"]
        changed = [
            not all(map(np.array_equal, then, now)) for then, now in itertools.pairwise(weights)
        ]
        assert changed == [False, True, False, True, False]

        def loss_of(first: Any, second: Any) -> tf.Tensor:
            return (square_error(twin, *first) + square_error(twin, *second)) / 2

        by_hand(twin, momentum(), loss_of, [STEPS[:2], STEPS[2:4]])
        assert_same_weights(model, twin, *([0.02, 0.01] if mixed else []))
        if not mixed:
            assert times == 1
            with tf.GradientTape() as tape:
                loss = square_error(twin, *STEPS[4])
            for one, two in zip(sums, tape.gradient(loss, twin.trainable_variables), strict=True):
                np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-6)

    def test_a_model_that_was_made_without_the_strategy(self) -> None:
        model = fastnet.build(mlp, sgd, model_name="m")
        network = TFNetwork(regression(model))
        x, y = STEPS[0]
        with under(STRATEGY):
            with pytest.raises(ValueError, match="Model") as caught, network(mode="train", epoch=1):
                pass
            assert str(caught.value) == (
                "Model 'm' is to be updated under a MirroredStrategy, but was not made under it. "
                "Call fastnet.build within its scope, or after "
                "tf.distribute.experimental_set_strategy."
            )
            with network(mode="eval", epoch=1):
                result = network.run_step({"x": halves(x), "y": halves(y)})
        np.testing.assert_allclose(result["y_pred"], model(x), rtol=1e-5)
        with network(mode="train", epoch=1):
            assert network.run_step({"x": x, "y": y})["y_pred"].shape == (8, 2)

    def test_a_model_that_was_made_under_it_runs_without_too(self) -> None:
        with STRATEGY.scope():
            model = fastnet.build(mlp, sgd)
        twin = same_model(model, mlp)
        network = TFNetwork(regression(model))
        x, y = STEPS[0]
        with network(mode="eval", epoch=1):
            assert network.run_step({"x": x, "y": y})["y_pred"].shape == (8, 2)
        with STRATEGY.scope(), network(mode="train", epoch=1):
            network.run_step({"x": halves(x), "y": halves(y)})
        by_hand(twin, sgd(), lambda x, y: square_error(twin, x, y), [(x, y)])
        assert_same_weights(model, twin)


# ---------------------------------------------------------------------- steps


Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Box:
    content: Any
    label: str


class Place(TensorOp):
    """Notes which device each of its runs is on, and what it finds in the state."""

    def __init__(self) -> None:
        super().__init__("x", "place")
        self.seen: list[dict[str, Any]] = []

    def forward(self, data: Any, state: Any) -> Any:
        context = tf.distribute.get_replica_context()
        assert context is not None
        self.seen.append({"state": state, **state})
        state["deferred"]["note"] = [lambda: None]
        return tf.fill(tf.shape(data)[:1], context.replica_id_in_sync_group)


class Gradients(TensorOp):
    """Takes gradients, so that there is a tape."""

    def forward(self, data: Any, state: Any) -> Any:
        return data

    def fe_retain_graph(self, retain: bool | None = None) -> bool | None:
        return False


class TestOpenedElsewhere:
    @pytest.mark.parametrize("replicas_first", [False, True])
    def test_steps_in_replicas_and_without(self, replicas_first: bool) -> None:
        """What a step finds out on one device is not taken for granted on several."""
        with STRATEGY.scope():
            model = fastnet.build(mlp, sgd)
        twin = same_model(model, mlp)
        x, y = numbers(4, seed=0)
        batch = {"x": tf.constant(x), "y": tf.constant(y, tf.float32)}
        network = TFNetwork(regression(model))
        with network(mode="train", epoch=1, eager=True):
            steps = [
                lambda: network.run_step(batch),
                lambda: STRATEGY.run(lambda: network.run_step(batch)),
            ]
            for step in reversed(steps) if replicas_first else steps:
                step()
        by_hand(twin, sgd(), lambda x, y: square_error(twin, x, y), [(x, y)] * 2)
        assert_same_weights(model, twin)


class TestSteps:
    @EITHER_WAY
    def test_what_is_joined_and_how(self, two: None, eager: bool) -> None:
        floats = LambdaOp(lambda x: tf.reduce_mean(x), "x", "mean")
        ints = LambdaOp(lambda x: tf.shape(x)[0], "x", "size")
        flags = LambdaOp(lambda x: tf.reduce_any(x > 6.0), "x", "any")
        words = LambdaOp(lambda x: tf.constant("word"), "x", "word")
        half = LambdaOp(lambda x: tf.reduce_sum(tf.cast(x, tf.float16)), "x", "half")
        rows = LambdaOp(lambda x: x * 2, "x", "double")
        constant = LambdaOp(lambda x: "text", "x", "text")
        array = LambdaOp(lambda x: np.array([1, 2]), "x", "array")
        network = TFNetwork([floats, ints, flags, words, half, rows, constant, array])
        x = np.arange(8.0, dtype="float32")
        with network(mode="infer", epoch=1, eager=eager):
            result = plain(network.run_step({"x": halves(x, 5)}))
        assert result.keys() == {
            "x", "mean", "size", "any", "word", "half", "double", "text", "array",
        }  # fmt: skip
        np.testing.assert_array_equal(result["x"], x)
        assert result["mean"] == (2.0 + 6.0) / 2
        assert (result["size"], result["size"].dtype) == (4.0, np.float64)
        assert (result["any"], result["any"].dtype) == (0.5, np.float64)
        assert result["word"] == b"word"
        assert (result["half"], result["half"].dtype) == ((10 + 18) / 2, np.float16)
        np.testing.assert_array_equal(result["double"], 2 * x)
        assert result["text"] == "text"
        np.testing.assert_array_equal(result["array"], [1, 2, 1, 2])

    @EITHER_WAY
    def test_scalars_that_are_no_numbers_do_not_count(self, two: None, eager: bool) -> None:
        network = TFNetwork([LambdaOp(lambda x: tf.reduce_mean(x), "x", "mean")])
        x = np.array([1.0, 3.0, 5.0], "float32")
        with network(mode="infer", epoch=1, eager=eager):
            assert network.run_step({"x": halves(x, 3)})["mean"] == 3.0
            assert network.run_step({"x": halves(x, 0)})["mean"] == 3.0
            assert np.isnan(network.run_step({"x": halves(x[:0])})["mean"])
            result = network.run_step({"x": halves(np.array([np.inf, 1.0], "float32"))})
        assert result["mean"] == np.inf
        assert result["mean"].dtype == tf.float32

    @EITHER_WAY
    def test_plain_values_are_everybodys(self, two: None, eager: bool) -> None:
        ops = [LambdaOp(lambda x, y: x + y, ["x", "y"], "z"), LambdaOp(lambda w: w, "w", "w2")]
        network = TFNetwork(ops)
        batch = {"x": tf.constant([1, 2]), "y": np.array([10, 20], "int32"), "w": "word", "v": None}
        with network(mode="infer", epoch=1, eager=eager):
            result = network.run_step(batch)
        assert result.keys() == {*batch, "z", "w2"}
        np.testing.assert_array_equal(result["z"], [11, 22, 11, 22])
        assert all(result[key] is value for key, value in batch.items())
        assert result["w2"] == "word"

    def test_batches_of_a_distributed_dataset(self, two: None) -> None:
        ops = [LambdaOp(lambda x: x + 1, "x", "y"), LambdaOp(tf.reduce_mean, "x", "mean")]
        network = TFNetwork(ops)
        x = np.arange(27, dtype="float32").reshape(9, 3)
        dataset = tf.data.Dataset.from_tensor_slices({"x": x, "n": np.arange(9)}).batch(4)
        batches = list(STRATEGY.experimental_distribute_dataset(dataset))
        with network(mode="infer", epoch=1):
            results = [plain(network.run_step(batch)) for batch in batches]
        assert [len(result["y"]) for result in results] == [4, 4, 1]
        np.testing.assert_array_equal(np.concatenate([result["x"] for result in results]), x)
        np.testing.assert_array_equal(np.concatenate([result["y"] for result in results]), x + 1)
        np.testing.assert_array_equal(np.concatenate([result["n"] for result in results]), range(9))
        # the last batch is the first device's
        means = [x[:4].mean(), x[4:8].mean(), x[8].mean()]
        np.testing.assert_allclose([result["mean"] for result in results], means, rtol=1e-6)
        assert len(network.traces) == 2  # one for the first size, and one for all others

    @EITHER_WAY
    def test_keys_that_no_op_reads_come_through(self, two: None, eager: bool) -> None:
        network = TFNetwork([LambdaOp(lambda x: x, "x", "y")])
        same = tf.types.experimental.distributed.Mirrored
        mirrored = STRATEGY.run(lambda: tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.SUM, tf.constant([1.0, 2.0])
        ))  # fmt: skip
        batch = {
            "x": halves(np.arange(3)),
            "rows": halves(np.arange(3)),
            "scalar": parts(1.0, 4.0),
            "nest": {"a": [halves(np.arange(4)), "b"], "c": Box(parts([1], [2]), "label")},
            "same": mirrored if isinstance(mirrored, same) else parts([2.0], [4.0]),
            "word": "word",
        }
        with network(mode="infer", epoch=1, eager=eager):
            result = network.run_step(batch)
        np.testing.assert_array_equal(result["rows"], np.arange(3))
        assert result["scalar"].numpy() == 2.5
        np.testing.assert_array_equal(result["nest"]["a"][0], np.arange(4))
        assert result["nest"]["a"][1] == "b"
        assert type(result["nest"]["c"]) is Box
        np.testing.assert_array_equal(result["nest"]["c"].content, [1, 2])
        np.testing.assert_array_equal(result["same"], [2.0, 4.0])
        assert result["word"] == "word"
        assert isinstance(batch["rows"], tf.distribute.DistributedValues)

    @EITHER_WAY
    def test_nested_values(self, two: None, eager: bool) -> None:
        def look(nest: Any) -> Any:
            assert type(nest) is dict
            assert type(nest["pair"]) is Pair
            assert type(nest["box"]) is Box
            left, right = nest["pair"]
            total = left + right[0] + nest["box"].content
            return [Pair(total, {"twice": 2 * total}), Box(tf.reduce_sum(total), right[1]), None]

        network = TFNetwork([LambdaOp(look, "nest", ["pair", "box", "none"])])
        x = np.arange(3.0)
        nest = {"pair": Pair(halves(x), [halves(10 * x), "b"]), "box": Box(halves(100 * x), "c")}
        with network(mode="infer", epoch=1, eager=eager):
            result = network.run_step({"nest": nest})
        assert type(result["pair"]) is Pair
        np.testing.assert_array_equal(result["pair"].left, 111 * x)
        np.testing.assert_array_equal(result["pair"].right["twice"], 222 * x)
        assert type(result["box"]) is Box
        assert (result["box"].content.numpy(), result["box"].label) == ((111 + 222) / 2, "b")
        assert result["none"] is None
        np.testing.assert_array_equal(result["nest"]["pair"].right[0], 10 * x)
        assert isinstance(nest["pair"].left, tf.distribute.DistributedValues)

    @EITHER_WAY
    def test_ragged_and_sparse_values(self, two: None, eager: bool) -> None:
        def look(ragged: Any, sparse: Any) -> Any:
            return ragged * 2, tf.sparse.map_values(tf.negative, sparse), ragged.row_lengths()

        network = TFNetwork([LambdaOp(look, ["ragged", "sparse"], ["double", "minus", "lengths"])])
        rows = [[1.0, 2.0], [], [3.0], [4.0, 5.0, 6.0]]
        ragged = [tf.ragged.constant(rows[:3]), tf.ragged.constant(rows[3:])]
        table = np.array([[0, 7, 0], [8, 0, 0], [0, 0, 9], [0, 1, 0]])
        sparse = [tf.sparse.from_dense(table[:3]), tf.sparse.from_dense(table[3:])]
        batch = {
            key: STRATEGY.experimental_distribute_values_from_function(
                lambda context, each=each: each[context.replica_id_in_sync_group]
            )
            for key, each in (("ragged", ragged), ("sparse", sparse))
        }
        with network(mode="infer", epoch=1, eager=eager):
            result = network.run_step(batch)
        assert result["double"].to_list() == [[2 * value for value in row] for row in rows]
        assert result["ragged"].to_list() == rows
        np.testing.assert_array_equal(tf.sparse.to_dense(result["minus"]), -table)
        np.testing.assert_array_equal(tf.sparse.to_dense(result["sparse"]), table)
        np.testing.assert_array_equal(result["lengths"], [2, 0, 1, 3])

    @EITHER_WAY
    def test_a_network_inside_a_step(self, two: None, eager: bool) -> None:
        class Inner(TensorOp):
            def forward(self, data: Any, state: Any) -> Any:
                with inner(mode="infer", epoch=1, eager=eager):
                    return inner.run_step({"a": data})["b"]

        inner = TFNetwork([LambdaOp(lambda a: a - tf.reduce_sum(a), "a", "b")])
        network = TFNetwork([Inner("x", "y")])
        x = np.array([1, 2, 3, 4])
        with network(mode="infer", epoch=1, eager=eager):
            result = network.run_step({"x": halves(x)})
        np.testing.assert_array_equal(result["y"], [-2, -1, -4, -3])

    @EITHER_WAY
    def test_each_device_has_a_state_of_its_own(self, two: None, eager: bool) -> None:
        place = Place()
        network = TFNetwork([place, Gradients("x", "y")])
        with network(mode="train", epoch=3, eager=eager):
            result = network.run_step({"x": halves(np.arange(5))})
        np.testing.assert_array_equal(result["place"], [0, 0, 0, 1, 1])
        first, second = place.seen
        for one in ("state", "deferred", "tape"):
            assert first[one] is not None
            assert first[one] is not second[one]
        assert first["deferred"] == second["deferred"] == {}
        assert (first["mode"], first["warmup"], first["eager"]) == ("train", False, eager)

    def test_conditions_over_tensors_become_those_of_a_graph(self, two: None) -> None:
        def sign(x: Any) -> Any:
            if tf.reduce_sum(x) > 0:
                y = tf.ones_like(x)
            else:
                y = -tf.ones_like(x)
            return y

        network = TFNetwork([LambdaOp(sign, "x", "y")])
        with network(mode="infer", epoch=1):
            for x in ([3, 1, -5], [-3, -1, 5, 6], [3, 1, -5, -6], [-3, -1, 5]):
                x = np.array(x)
                y = network.run_step({"x": halves(x)})["y"]
                middle = (len(x) + 1) // 2
                signs = [
                    np.full(len(part), np.sign(part.sum())) for part in (x[:middle], x[middle:])
                ]
                np.testing.assert_array_equal(y, np.concatenate(signs))
        assert len(network.traces) == 2  # one for the first size, and one for all others

    @EITHER_WAY
    def test_wanted_keys_and_deleted_ones(self, two: None, eager: bool) -> None:
        ops = [
            LambdaOp(lambda x: x + 1, "x", "y"),
            LambdaOp(lambda y: y + 1, "y", "z"),
            Delete("y"),
            LambdaOp(lambda x: x * 0, "x", "x"),
        ]
        network = TFNetwork(ops)
        x = np.arange(3)
        with network(mode="infer", epoch=1, eager=eager, desired_output_keys=["z"]):
            result = plain(network.run_step({"x": halves(x)}))
        assert result.keys() == {"x", "z"}
        np.testing.assert_array_equal(result["z"], x + 2)
        np.testing.assert_array_equal(result["x"], x)
        with network(mode="infer", epoch=1, eager=eager):
            result = plain(network.run_step({"x": halves(x)}))
        assert result.keys() == {"x", "z"}
        np.testing.assert_array_equal(result["x"], 0 * x)

    def test_two_traces_for_all_sizes_and_openings(self, two: None) -> None:
        network = TFNetwork([LambdaOp(lambda x: x + 1, "x", "y")])
        for epoch in (1, 2):
            with network(mode="infer", epoch=epoch):
                for size in (8, 8, 5, 3, 8, 1, 2, 0):
                    x = np.arange(size)
                    np.testing.assert_array_equal(network.run_step({"x": halves(x)})["y"], x + 1)
        assert [trace.reason for trace in network.traces] == [
            "first step in mode 'infer'",
            "'x' holds tensors of other shapes than before; from now on any length of axis 0 fits",
        ]
        with network(mode="infer", epoch=3):
            x = np.arange(4, dtype="float32")
            np.testing.assert_array_equal(network.run_step({"x": halves(x)})["y"], x + 1)
            np.testing.assert_array_equal(
                network.run_step({"x": tf.constant(x)})["y"], [*(x + 1), *(x + 1)]
            )
        assert len(network.traces) == 4

    def test_with_and_without_a_strategy_are_two_traces(self) -> None:
        network = TFNetwork([LambdaOp(lambda x: x + 1, "x", "y")])
        x = np.arange(4)
        for _ in range(2):
            with network(mode="infer", epoch=1):
                np.testing.assert_array_equal(network.run_step({"x": x})["y"], x + 1)
            with under(STRATEGY), network(mode="infer", epoch=1):
                np.testing.assert_array_equal(network.run_step({"x": halves(x)})["y"], x + 1)
            with STRATEGY.scope(), network(mode="infer", epoch=1):
                np.testing.assert_array_equal(network.run_step({"x": halves(x)})["y"], x + 1)
        assert len(network.traces) == 2

    @pytest.mark.parametrize(
        "make",
        [
            lambda: tf.distribute.MirroredStrategy(DEVICES[1:]),
            lambda: tf.distribute.OneDeviceStrategy(DEVICES[1]),
        ],
        ids=["mirrored", "one device"],
    )
    @EITHER_WAY
    def test_a_strategy_of_one_device(self, make: Any, eager: bool) -> None:
        with under(make()):
            model = fastnet.build(mlp, sgd)
            twin = same_model(model, mlp)
            network = TFNetwork(regression(model))
            x, y = STEPS[0]
            with network(mode="train", epoch=1, eager=eager):
                result = network.run_step({"x": x, "y": y, "z": 1})
            assert result["y_pred"].shape == (8, 2)
            assert network.transform({"x": x[:1], "y": y[:1]}, mode="eval")["loss"].shape == ()
            slicers = [AxisSlicer(1, slice="y", unslice="z")]
            sliced = TFNetwork([LambdaOp(lambda y: -y, "y", "z")], slicers=slicers)
            with sliced(mode="eval", epoch=1, eager=eager):
                np.testing.assert_array_equal(sliced.run_step({"y": tf.constant(y)})["z"], -y)
            np.testing.assert_array_equal(sliced.transform({"y": y}, mode="eval")["z"], -y)
        by_hand(twin, sgd(), lambda x, y: square_error(twin, x, y), [(x, y)])
        assert_same_weights(model, twin)

    @EITHER_WAY
    def test_nothing_is_logged_for_it(self, two: None, eager: bool) -> None:
        seen: list[logging.LogRecord] = []
        handler = logging.Handler(logging.DEBUG)
        handler.emit = seen.append  # type: ignore[method-assign]
        logger = tf.get_logger()
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)  # as where TensorFlow is used interactively
        try:
            model = fastnet.build(mlp, sgd)
            network = TFNetwork([LambdaOp(tell, "x", "x"), *regression(model)])
            x, y = STEPS[0]
            with network(mode="train", epoch=1, eager=eager):
                network.run_step({"x": halves(x), "y": halves(y)})
            network.transform({"x": x, "y": y}, mode="eval")
            assert logger.level == logging.INFO
        finally:
            logger.setLevel(logging.NOTSET)
            logger.removeHandler(handler)
        assert {record.getMessage() for record in seen} == {"what an op tells"}


@tf.autograph.experimental.do_not_convert
def tell(x: Any) -> Any:
    tf.get_logger().warning("what an op tells")
    return x


# ---------------------------------------------------------------------- errors


class TestErrors:
    @EITHER_WAY
    def test_on_one_device_only(self, two: None, eager: bool) -> None:
        def fail(x: Any) -> Any:
            if fails and tf.distribute.get_replica_context().replica_id_in_sync_group == 1:
                raise OSError("no such thing")
            return x

        fails = True
        network = TFNetwork([LambdaOp(lambda x: x, "x", "y"), LambdaOp(fail, "y", "z")])
        with network(mode="infer", epoch=1, eager=eager):
            with pytest.raises(OSError, match="no") as caught:
                network.run_step({"x": halves(np.arange(4))})
            assert str(caught.value) == "no such thing"
            notes = [note for note in caught.value.__notes__ if note.startswith("Raised by")]
            assert notes == ["Raised by LambdaOp (op 1, inputs ['y'], outputs ['z'])."]
            fails = False
            result = network.run_step({"x": halves(np.arange(4))})
            np.testing.assert_array_equal(result["z"], np.arange(4))

    def test_while_a_graph_runs(self, two: None) -> None:
        def check(x: Any) -> Any:
            tf.debugging.assert_positive(x, "not positive")
            return x

        network = TFNetwork([LambdaOp(lambda x: x, "x", "y"), LambdaOp(check, "y", "z")])
        with network(mode="infer", epoch=1):
            with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                network.run_step({"x": halves(np.arange(4) - 2)})
            note = "Raised by LambdaOp (op 1, inputs ['y'], outputs ['z'])."
            assert caught.value.__notes__[0] == note
            assert network.run_step({"x": halves(np.arange(4) + 1)})["z"].shape == (4,)

    @EITHER_WAY
    def test_where_the_devices_meet(self, two: None, eager: bool) -> None:
        class Meet(TensorOp):
            def forward(self, data: Any, state: Any) -> Any:
                def fail(strategy: Any, value: Any) -> Any:
                    raise OSError("no agreement")

                tf.distribute.get_replica_context().merge_call(fail, args=(data,))

        network = TFNetwork([Meet("x", "y")])
        with network(mode="infer", epoch=1, eager=eager):
            for _ in range(2):
                with pytest.raises(OSError, match="no") as caught:
                    network.run_step({"x": halves(np.arange(4))})
                assert str(caught.value) == "no agreement"
                notes = [note for note in caught.value.__notes__ if note.startswith("Raised by")]
                assert notes == ["Raised by Meet (op 0, inputs ['x'], outputs ['y'])."]

    @EITHER_WAY
    def test_results_that_differ_in_form(self, two: None, eager: bool) -> None:
        class Several(TensorOp):
            def forward(self, data: Any, state: Any) -> Any:
                return [data] * (1 + next(runs) % 2)

        runs = itertools.count()

        network = TFNetwork([Several("x", "y")])
        with (
            network(mode="infer", epoch=1, eager=eager),
            pytest.raises(ValueError, match="The") as caught,
        ):
            network.run_step({"x": halves(np.arange(4))})
        assert str(caught.value) == (
            "The value of 'y' holds different numbers of values on the devices, [1, 2], so that "
            "they cannot be put together. What ops return must not depend on which part of a "
            "batch they see."
        )

    @EITHER_WAY
    def test_a_key_that_is_not_there(self, two: None, eager: bool) -> None:
        network = TFNetwork([LambdaOp(lambda x: x, "x", "y")])
        with network(mode="infer", epoch=1, eager=eager):
            with pytest.raises(KeyError) as caught:
                network.run_step({"w": halves(np.arange(4))})
            assert str(caught.value) == (
                "LambdaOp (op 0, inputs ['x'], outputs ['y']) reads the key 'x', but there is no "
                "such key. Keys there: ['w']. Put the key into the batch, or let an earlier op "
                "write it."
            )
            assert network.run_step({"x": halves(np.arange(4))})["y"].shape == (4,)


# ---------------------------------------------------------------------- transform


def rows_seen(x: Any) -> Any:
    return tf.shape(x)[:1]


class TestTransform:
    @pytest.mark.parametrize("size", [1, 2, 3, 5])
    @pytest.mark.parametrize("several", [False, True], ids=["a batch", "a list"])
    @pytest.mark.parametrize("devices", [2, 3])
    def test_batches_of_any_size(self, size: int, several: bool, devices: int) -> None:
        strategy = STRATEGY if devices == 2 else ALL_THREE
        ops = [
            LambdaOp(lambda x: x * 10, "x", "y"),
            LambdaOp(lambda x: tf.repeat(x, 3), "x", "thrice"),
            LambdaOp(rows_seen, "x", "sizes"),
            LambdaOp(tf.reduce_mean, "x", "mean"),
            LambdaOp(lambda words: tf.strings.length(words), "words", "lengths"),
        ]
        x = np.arange(size, dtype="float32")
        words = np.array(["w" * number for number in range(size)])
        batch = {"x": x, "words": words, "other": np.arange(7), "text": "text"}
        with under(strategy):
            network = TFNetwork(ops)
            if several:
                (result,) = network.transform([batch], mode="infer")
            else:
                result = network.transform(batch, mode="infer")
        result = plain(result)
        np.testing.assert_array_equal(result["x"], x)
        np.testing.assert_array_equal(result["y"], 10 * x)
        np.testing.assert_array_equal(result["thrice"], np.repeat(x, 3))
        np.testing.assert_array_equal(result["lengths"], np.arange(size))
        np.testing.assert_array_equal(result["other"], np.arange(7))
        assert result["text"] == "text"
        assert strategy.num_replicas_in_sync == devices
        # as even as it goes, the first devices having more; a device without samples has copies
        expected = [len(part) for part in np.array_split(x, devices)]
        assert result["sizes"].tolist() == ([1] * size if size < devices else expected)
        if size >= devices:
            means = [part.mean() for part in np.array_split(x, devices)]
            np.testing.assert_allclose(result["mean"], np.mean(means), rtol=1e-6)
        assert batch["x"] is x

    @pytest.mark.parametrize(
        "make",
        [
            lambda x: Labels([x, x], "name"),
            lambda x: Registry("name", a=x, b=x),
            lambda x: Picky(x, second=x),
            lambda x: Store("name", a=x, b=x),
            lambda x: Point(x, Labels([x], "name")),
        ],
    )
    def test_containers_keep_their_classes(self, two: None, make: Any) -> None:
        x = np.arange(4, dtype="float32")
        network = TFNetwork([LambdaOp(lambda c: c, "c", "d")])
        result = network.transform({"c": make(x)}, mode="infer")
        for key in ("c", "d"):
            assert type(result[key]) is type(make(x))
            for name in ("name", "note"):
                assert getattr(result[key], name, None) == getattr(make(x), name, None)
            parts = result[key].values() if isinstance(result[key], Mapping) else result[key]
            for part in parts:
                inner = part[0] if isinstance(part, Labels) else part
                np.testing.assert_array_equal(inner, x)

    def test_values_that_are_nests_or_have_no_axes(self, two: None) -> None:
        def look(nest: Any, scalar: Any, text: Any) -> Any:
            assert text == "text"
            return nest["a"][0] + nest["b"] * scalar

        network = TFNetwork([LambdaOp(look, ["nest", "scalar", "text"], "y")])
        x = np.arange(5.0)
        nest = {"a": [x, "c"], "b": 10 * x}
        result = network.transform({"nest": nest, "scalar": 2.0, "text": "text"}, mode="infer")
        np.testing.assert_array_equal(result["y"], 21 * x)
        np.testing.assert_array_equal(result["nest"]["a"][0], x)
        assert (result["nest"]["a"][1], result["scalar"].numpy()) == ("c", 2.0)

    def test_ragged_and_sparse_values(self, two: None) -> None:
        def look(ragged: Any, sparse: Any) -> Any:
            return ragged * 2, tf.sparse.map_values(tf.negative, sparse)

        network = TFNetwork([LambdaOp(look, ["ragged", "sparse"], ["double", "minus"])])
        rows = [[1.0, 2.0], [], [3.0]]
        table = np.array([[0, 7, 0], [8, 0, 0], [0, 0, 9]])
        for size in (3, 1):
            ragged = tf.ragged.constant(rows[:size])
            batch = {"ragged": ragged, "sparse": tf.sparse.from_dense(table[:size])}
            for result in (
                network.transform(batch, mode="infer"),
                network.transform([batch], mode="infer")[0],
            ):
                assert result["double"].to_list() == [
                    [2 * one for one in row] for row in rows[:size]
                ]
                np.testing.assert_array_equal(tf.sparse.to_dense(result["minus"]), -table[:size])
                assert result["ragged"] is ragged

    def test_datasets(self, two: None) -> None:
        network = TFNetwork([LambdaOp(lambda x: x + 1, "x", "y")])
        x = np.arange(9)
        dataset = tf.data.Dataset.from_tensor_slices({"x": x}).batch(4)
        for data in (dataset, STRATEGY.experimental_distribute_dataset(dataset)):
            results = network.transform(data, mode="infer")
            assert [result["y"].shape[0] for result in results] == [4, 4, 1]
            np.testing.assert_array_equal(np.concatenate([one["x"] for one in results]), x)
            np.testing.assert_array_equal(np.concatenate([one["y"] for one in results]), x + 1)
        assert len(network.traces) == 2  # one for the first size, and one for all others
        result = network.transform({"x": x[:1]}, mode="infer")
        np.testing.assert_array_equal(result["y"], [1])

    def test_values_of_several_lengths(self, two: None) -> None:
        network = TFNetwork([LambdaOp(lambda x, y: tf.reduce_sum(x) + y, ["x", "y"], "z")])
        batch = {"x": np.arange(3), "y": np.arange(4)}
        with pytest.raises(AssertionError) as caught:
            network.transform(batch, mode="infer")
        assert str(caught.value) == (
            "A batch is to be spread over 2 devices, but the first axes of what ops read differ: "
            "{'x': [3], 'y': [4]}. Let each have a length of the number of samples."
        )
        batch["x"] = batch["y"]
        np.testing.assert_array_equal(network.transform(batch, mode="infer")["z"], [1, 2, 7, 8])

    @pytest.mark.parametrize("size", [1, 4])
    def test_postprocessing_sees_whole_batches(self, two: None, size: int) -> None:
        def look(x: Any, y: Any, other: Any) -> Any:
            seen.append([type(one) for one in (x, y, other)])
            return x + y + other

        seen: list[Any] = []
        pops = NumpyLambdaOp(look, ["x", "y", "other"], "z")
        network = TFNetwork([LambdaOp(lambda x: x * 10, "x", "y")], postprocessing=pops)
        x = np.arange(size)
        result = network.transform({"x": x, "other": 100 * x}, mode="infer")
        np.testing.assert_array_equal(result["z"], 111 * x)
        assert result["z"].shape == (size,)
        with network(mode="infer", epoch=1):
            result = network.run_step({"x": halves(x), "other": halves(100 * x)})
        np.testing.assert_array_equal(result["z"], 111 * x)

    def test_training(self) -> None:
        with under(STRATEGY):
            model = fastnet.build(mlp, momentum)
            twin = same_model(model, mlp)
            network = TFNetwork(regression(model))
            x, y = STEPS[0]
            network.transform({"x": x, "y": y}, mode="train")
            network.transform([{"x": x, "y": y} for x, y in STEPS], mode="train")
        by_hand(twin, momentum(), lambda x, y: square_error(twin, x, y), [STEPS[0], *STEPS])
        assert_same_weights(model, twin)


# ---------------------------------------------------------------------- slicers


IMAGES = np.arange(5 * 4 * 6, dtype="float32").reshape(5, 4, 6)

WAYS = ["distributed", "transform", "transform a list"]


def sliced(network: Any, way: str, batch: dict[str, Any], first: int | None = None) -> Any:
    """Run a network with slicers on a batch that is, or is to be, spread over two devices."""
    if way == "distributed":
        with network(mode="infer", epoch=1):
            result = network.run_step({key: halves(one, first) for key, one in batch.items()})
    elif way == "transform":
        result = network.transform(batch, mode="infer")
    else:
        (result,) = network.transform([batch], mode="infer")
    return plain(result)


class TestSlicers:
    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("size", [5, 1])
    @pytest.mark.parametrize(
        "slicer",
        [
            lambda: AxisSlicer(axis=-1, slice="x", unslice=["y"]),
            lambda: SlidingSlicer([-1, 2, 3], slice="x", unslice=["y"]),
            lambda: SlidingSlicer([-1, 3, 4], [0, 1, 2], slice="x", unslice=["y"]),
            lambda: SlidingSlicer([-1, 3, 4], pad_mode="partial", slice="x", unslice=["y"]),
            lambda: SlidingSlicer([-1, 1, -1], squeeze_window=True, slice="x", unslice=["y"]),
        ],
    )
    def test_along_other_axes(self, two: None, slicer: Any, size: int, way: str) -> None:
        ops = [LambdaOp(lambda x: x * 2, "x", "y"), LambdaOp(tf.reduce_mean, "x", "mean")]
        network = TFNetwork(ops, slicers=[slicer(), MeanUnslicer("mean")])
        x = IMAGES[:size]
        result = sliced(network, way, {"x": x, "other": np.arange(size)})
        np.testing.assert_array_equal(result["x"], x)
        np.testing.assert_array_equal(result["other"], np.arange(size))
        np.testing.assert_array_equal(result["y"], x * 2)
        assert result["mean"].shape == ()
        assert len(network.traces) <= 4  # last windows may be smaller
        pieces = [piece for (piece,) in slicer().slice_batches((x,))]
        halved = [np.array_split(piece, 2) if size > 1 else [piece] for piece in pieces]
        means = [np.mean([part.mean() for part in each]) for each in halved]
        np.testing.assert_allclose(result["mean"], np.mean(means), rtol=1e-5)

    @pytest.mark.parametrize("way", WAYS)
    def test_along_the_axis_of_the_batch(self, two: None, way: str) -> None:
        slicers = [SlidingSlicer([2, -1, -1], slice="x", unslice="y"), MeanUnslicer("mean")]
        ops = [LambdaOp(lambda x: x * 2, "x", "y"), LambdaOp(tf.reduce_mean, "x", "mean")]
        network = TFNetwork(ops, slicers=slicers)
        x = IMAGES[:4]
        result = sliced(network, way, {"x": x})
        np.testing.assert_array_equal(result["y"], 2 * x)
        np.testing.assert_allclose(result["mean"], x.mean(), rtol=1e-6)

    @pytest.mark.parametrize(
        ("way", "size"),
        # a device without samples has no minibatch
        [("distributed", 4), *((way, size) for way in WAYS[1:] for size in (1, 4))],
    )
    def test_one_sample_at_a_time(self, two: None, size: int, way: str) -> None:
        def classify(x: Any, weights: Any) -> Any:
            assert x.shape.rank == 2
            return tf.reduce_sum(x) + weights[:1]

        slicers = [AxisSlicer(0, slice="x", unslice=["y"]), AxisSlicer(0, unslice=["z"])]
        ops = [LambdaOp(lambda x: x * 2, "x", "y"), LambdaOp(classify, ["x", "w"], "z")]
        network = TFNetwork(ops, slicers=slicers)
        x = IMAGES[:size]
        result = sliced(network, way, {"x": x, "w": np.ones(size, "float32")})
        np.testing.assert_array_equal(result["y"], 2 * x)
        np.testing.assert_array_equal(result["z"], x.sum(axis=(1, 2))[:, None] + 1)

    def test_windows_that_overlap_are_averaged_or_added(self, two: None) -> None:
        x = IMAGES[:3]
        for mode, counts in (("avg", [1, 1, 1, 1, 1, 1]), ("sum", [1, 2, 3, 3, 2, 1])):
            slicer = SlidingSlicer([-1, -1, 3], 1, slice="x", unslice="y", unslice_mode=mode)
            network = TFNetwork([LambdaOp(lambda x: x * 1, "x", "y")], slicers=slicer)
            for way in WAYS:
                np.testing.assert_array_equal(sliced(network, way, {"x": x})["y"], x * counts)

    def test_a_shape_that_was_given(self, two: None) -> None:
        slicer = SlidingSlicer([-1, -1, 3], slice="x", unslice="y", unslice_shape=[2, 2, 6])
        network = TFNetwork([LambdaOp(lambda x: x[:, :2], "x", "y")], slicers=slicer)
        x = IMAGES[:4]
        result = sliced(network, "distributed", {"x": x})
        np.testing.assert_array_equal(result["y"], x[:, :2])

    @EITHER_WAY
    def test_plain_batches_are_everybodys(self, two: None, eager: bool) -> None:
        x = IMAGES[:2]
        for slicer in (
            AxisSlicer(1, slice="x", unslice="y"),
            SlidingSlicer([-1, 2, -1], slice="x", unslice="y"),
        ):
            network = TFNetwork([LambdaOp(lambda x: x * 2, "x", "y")], slicers=slicer)
            with network(mode="infer", epoch=1, eager=eager):
                result = network.run_step({"x": tf.constant(x), "other": np.arange(2)})
            np.testing.assert_array_equal(result["y"], np.concatenate([2 * x, 2 * x]))
            np.testing.assert_array_equal(result["other"], [0, 1])

    @EITHER_WAY
    def test_keys_that_are_cut_by_themselves(self, two: None, eager: bool) -> None:
        def add(x: Any, weights: Any) -> Any:
            return x + weights

        slicers = [AxisSlicer(1, slice=["x", "w"], unslice=["x"]), AxisSlicer(1, unslice="y")]
        network = TFNetwork([LambdaOp(add, ["x", "w"], "y")], slicers=slicers)
        x = IMAGES[:3, :, 0]
        weights = np.arange(4, dtype="float32").reshape(1, 4)
        with network(mode="infer", epoch=1, eager=eager):
            result = plain(network.run_step({"x": halves(x), "w": weights, "z": halves(x)}))
        np.testing.assert_array_equal(result["y"], x + weights)
        np.testing.assert_array_equal(result["x"], x)
        np.testing.assert_array_equal(result["z"], x)
        np.testing.assert_array_equal(result["w"], weights)

    def test_training(self) -> None:
        class Rows(Slicer):
            def _slice_batch(self, batch: Any) -> list[Any]:
                middle = batch.shape[0] // 2
                return [batch[:middle], batch[middle:]]

        with under(STRATEGY):
            model = fastnet.build(mlp, momentum)
            twin = same_model(model, mlp)
            slicers = [Rows(slice=["x", "y"], unslice=None), MeanUnslicer("loss")]
            network = TFNetwork(regression(model), slicers=slicers)
            x, y = numbers(8, seed=5)
            with network(mode="train", epoch=1, desired_output_keys=["loss"]):
                loss = network.run_step({"x": halves(x), "y": halves(y)})["loss"]
        # each device cut its own half
        order = [[0, 1, 4, 5], [2, 3, 6, 7]]
        losses = by_hand(
            twin,
            momentum(),
            lambda x, y: square_error(twin, x, y),
            [(x[rows], y[rows]) for rows in order],
        )
        np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-5)
        assert_same_weights(model, twin)

    def test_postprocessing_sees_what_was_joined(self, two: None) -> None:
        pops = [NumpyLambdaOp(lambda y, other: y.sum(axis=(1, 2)) + other, ["y", "other"], "z")]
        slicer = AxisSlicer(-1, slice="x", unslice="y")
        ops = [LambdaOp(lambda x: x * 2, "x", "y")]
        network = TFNetwork(ops, postprocessing=pops, slicers=slicer)
        for way in WAYS:
            result = sliced(network, way, {"x": IMAGES, "other": np.arange(5)})
            expected = (2 * IMAGES).sum(axis=(1, 2)) + np.arange(5)
            np.testing.assert_array_equal(result["z"], expected)

    def test_parts_that_make_different_numbers_of_minibatches(self, two: None) -> None:
        slicer = SlidingSlicer([2, -1, -1], pad_mode="partial", slice="x", unslice="y")
        network = TFNetwork([LambdaOp(lambda x: x * 2, "x", "y")], slicers=slicer)
        with network(mode="infer", epoch=1):
            with pytest.raises(ValueError, match="SlidingSlicer") as caught:
                network.run_step({"x": halves(IMAGES, 4)})
            assert str(caught.value) == (
                "SlidingSlicer cut ['x'] into different numbers of minibatches on the devices: "
                "[2, 1]. Cut along an axis other than the batch's, or give each device as many "
                "samples."
            )
            assert caught.value.__notes__ == ["Raised by SlidingSlicer while it sliced ['x']."]
            result = network.run_step({"x": halves(IMAGES[:4])})
            np.testing.assert_array_equal(result["y"], 2 * IMAGES[:4])
        result = network.transform({"x": IMAGES}, mode="infer")
        np.testing.assert_array_equal(result["y"], 2 * IMAGES)


# ---------------------------------------------------------------------- build


@pytest.fixture
def as_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let two of the devices pass for GPUs."""
    found = tf.config.list_logical_devices("CPU")[:2]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: list(found))
    yield
    tf.distribute.experimental_set_strategy(None)


def optimizer_variables(optimizer: Any) -> list[Any]:
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


class TestBuild:
    @pytest.mark.parametrize("mixed", [False, True])
    def test_models_are_mirrored(
        self, as_gpus: None, mixed: bool, capfd: pytest.CaptureFixture[str]
    ) -> None:
        def make() -> Any:
            strategies.append(tf.distribute.has_strategy())
            model = mlp()
            names.append([layer.name for layer in model.layers])
            return model

        strategies: list[bool] = []
        names: list[list[str]] = []
        keras.backend.clear_session()
        model = fastnet.build(make, adam, mixed_precision=mixed)
        strategy = tf.distribute.get_strategy()
        assert type(strategy) is tf.distribute.MirroredStrategy
        assert [device[-5:] for device in strategy.extended.worker_devices] == ["CPU:0", "CPU:1"]
        assert strategies == [False, True]
        assert names[0] == names[1]
        for variable in [*model.weights, *optimizer_variables(model.optimizer)]:
            assert len(copies_of(variable)) == 2
        assert capfd.readouterr() == ("", "")
        x, y = STEPS[0]
        network = TFNetwork(regression(model))
        twin = same_model(model, mlp)
        with network(mode="train", epoch=1):
            x_parts, y_parts = (
                strategy.experimental_distribute_values_from_function(
                    lambda context, value=value: tf.split(value, 2)[
                        context.replica_id_in_sync_group
                    ]
                )
                for value in (x, y)
            )
            network.run_step({"x": x_parts, "y": y_parts})
        # another model is made once, where the strategy is there already
        fastnet.build(make, "sgd")
        assert strategies == [False, True, True]
        assert tf.distribute.get_strategy() is strategy
        tf.distribute.experimental_set_strategy(None)
        by_hand(twin, adam(), lambda x, y: square_error(twin, x, y), [(x, y)])
        assert_same_weights(model, twin, *([0.02, 0.002] if mixed else []))

    def test_several_models_and_scheduled_optimizers(self, as_gpus: None) -> None:
        scheduler = EpochScheduler({1: sgd, 2: None, 3: adam})
        first, second = fastnet.build(lambda: [mlp(), mlp()], [scheduler, "adam"])
        for optimizer in (first.optimizer.get_current_value(3), second.optimizer):
            assert all(len(copies_of(one)) == 2 for one in optimizer_variables(optimizer))
        assert all(len(copies_of(one)) == 2 for one in [*first.weights, *second.weights])

    def test_weights_from_a_file(self, as_gpus: None, tmp_path: Any) -> None:
        source = mlp()
        path = str(tmp_path / "model.weights.h5")
        source.save_weights(path)
        model = fastnet.build(mlp, "sgd", weights_path=path)
        assert_same_weights(model, source)
        assert all(len(copies_of(one)) == 2 for one in model.weights)

    def test_a_strategy_of_the_programs_own_stays(self, as_gpus: None) -> None:
        def make() -> Any:
            made.append(tf.distribute.get_strategy())
            return mlp()

        made: list[Any] = []
        with under(ALL_THREE):
            model = fastnet.build(make, "sgd")
            assert tf.distribute.get_strategy() is ALL_THREE
        with ALL_THREE.scope():
            other = fastnet.build(make, "sgd")
        assert made == [ALL_THREE] * 2
        assert not tf.distribute.has_strategy()
        for variable in [*model.weights, *other.weights]:
            assert len(copies_of(variable)) == 3

    def test_one_gpu_needs_no_strategy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = tf.config.list_logical_devices("CPU")[:1]
        monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: list(found))
        made: list[Any] = []
        model = fastnet.build(lambda: made.append(mlp()) or made[-1], "sgd")
        assert not tf.distribute.has_strategy()
        assert made == [model]

    def test_a_model_that_cannot_be_made_leaves_no_strategy(self, as_gpus: None) -> None:
        def make() -> Any:
            if tf.distribute.has_strategy():
                raise OSError("out of memory")
            return mlp()

        with pytest.raises(OSError, match="out") as caught:
            fastnet.build(make, "sgd")
        assert str(caught.value) == "out of memory"
        assert not tf.distribute.has_strategy()


# ---------------------------------------------------------------------- FastEstimator


@pytest.fixture(scope="module")
def fastestimator() -> Any:
    return pytest.importorskip("fastestimator")


class TestAgainstFastEstimator:
    """The same programs in FastEstimator, in the environment that has it."""

    @pytest.mark.parametrize("firsts", [(4, 4, 2, 3, 4), (8, 3, 4, 1, 5)], ids=["even", "uneven"])
    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    def test_training(self, two: None, fastestimator: Any, optimizer: str, firsts: Any) -> None:
        def make() -> Any:
            return mlp(keras.regularizers.L2(0.1))

        from fastestimator.op.tensorop.loss import MeanSquaredError as TheirError
        from fastestimator.op.tensorop.model import ModelOp as TheirPass
        from fastestimator.op.tensorop.model import UpdateOp as TheirUpdate

        model = fastnet.build(make, optimizer)
        theirs = fastestimator.build(make, optimizer)
        for weight, other in zip(theirs.weights, model.weights, strict=True):
            weight.assign(value_of(other))
        network = TFNetwork(regression(model))
        their_network = fastestimator.Network(
            ops=[
                TheirPass(theirs, "x", "y_pred"),
                TheirError(("y_pred", "y"), "loss"),
                TheirUpdate(theirs, "loss"),
            ]
        )
        for epoch in (1, 2):
            with (
                network(mode="train", epoch=epoch),
                their_network(mode="train", epoch=epoch, ds_id="") as opened,
            ):
                for (x, y), first in zip(STEPS, firsts, strict=True):
                    batch = {"x": halves(x, first), "y": halves(y, first)}
                    result = network.run_step(batch)
                    expected = opened.run_step(batch)
                    assert result.keys() == expected.keys()
                    for key, value in expected.items():
                        np.testing.assert_allclose(result[key], value, rtol=1e-5, atol=1e-6)
            assert_same_weights(model, theirs, rtol=1e-5)

    @pytest.mark.parametrize("size", [1, 2, 3, 5])
    def test_transform(self, two: None, fastestimator: Any, size: int) -> None:
        from fastestimator.op.tensorop import LambdaOp as TheirLambdaOp

        x = np.arange(3.0 * size, dtype="float32").reshape(size, 3)
        batch = {"x": x, "other": np.arange(size), "text": "text"}
        for as_list in (False, True):
            data: Any = [batch] if as_list else batch
            results = []
            for network_class, op in (
                (TFNetwork, LambdaOp),
                (fastestimator.network.TFNetwork, TheirLambdaOp),
            ):
                ops = [op(fn=twice, inputs="x", outputs="y"), op(fn=mean, inputs="x", outputs="m")]
                results.append(network_class(ops).transform(data, mode="infer"))
            mine, theirs = (one[0] if as_list else one for one in results)
            assert mine.keys() == theirs.keys()
            assert mine["text"] == theirs["text"] == "text"
            for key in ("x", "other", "y", "m"):
                np.testing.assert_array_equal(mine[key], theirs[key])

    def test_slicers(self, two: None, fastestimator: Any) -> None:
        from fastestimator.op.tensorop import LambdaOp as TheirLambdaOp
        from fastestimator.slicer import AxisSlicer as TheirAxisSlicer
        from fastestimator.slicer import MeanUnslicer as TheirMeanUnslicer
        from fastestimator.slicer import SlidingSlicer as TheirSlidingSlicer

        def networks(settings: dict[str, Any], sliding: bool) -> Iterator[Any]:
            both = (
                (TFNetwork, LambdaOp, AxisSlicer, SlidingSlicer, MeanUnslicer),
                (
                    fastestimator.network.TFNetwork,
                    TheirLambdaOp,
                    TheirAxisSlicer,
                    TheirSlidingSlicer,
                    TheirMeanUnslicer,
                ),
                # theirs in ours
                (TFNetwork, TheirLambdaOp, TheirAxisSlicer, TheirSlidingSlicer, TheirMeanUnslicer),
            )
            for network, op, axis, slide, average in both:
                ops = [op(fn=twice, inputs="x", outputs="y"), op(fn=mean, inputs="x", outputs="m")]
                slicer = (slide if sliding else axis)(slice="x", unslice=("x", "y"), **settings)
                yield network(ops, slicers=[slicer, average("m")])

        def check(results: list[Any]) -> None:
            first, *others = map(plain, results)
            for other in others:
                assert first.keys() == other.keys()
                for key, value in first.items():
                    np.testing.assert_allclose(value, other[key], rtol=1e-6)

        batch = {"x": IMAGES, "other": np.arange(5)}
        for settings, sliding in (
            ({"axis": 2}, False),
            ({"axis": 1}, False),
            ({"window_size": [-1, 2, 3]}, True),
            ({"window_size": [2, -1, -1], "pad_mode": "partial"}, True),
        ):
            check([one.transform(batch, mode="infer") for one in networks(settings, sliding)])
        parts = {key: halves(value) for key, value in batch.items()}
        results = []
        for network in networks({"axis": 1}, False):
            with network(mode="infer", epoch=1, ds_id="") as opened:
                results.append(opened.run_step(parts))
        check(results)
        # here FastEstimator wants shapes of the whole where it has those of a device's part
        mine, _, mixed = networks({"window_size": [-1, 2, 3]}, True)
        for network in (mine, mixed):
            with network(mode="infer", epoch=1):
                result = network.run_step(parts)
            np.testing.assert_array_equal(result["y"], 2 * IMAGES)


def twice(x: Any) -> Any:
    return x * 2


def mean(x: Any) -> Any:
    return tf.reduce_mean(x)
