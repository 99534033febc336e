"""Changes of what a graph was traced from take effect on the next entry."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.meta import Fuse, OneOf, Repeat, Sometimes
from fastnet.op.tensorop.model import ModelOp
from tests.network.keras_models import (
    KERAS_3,
    Batch,
    assert_close,
    infer,
    keras,
    layers,
    loop,
    regression,
    tf,
    to_zero,
    train,
    twins,
)
from tests.network.tf_programs import EITHER_WAY, Counting, first, ones, reasons

pytestmark = pytest.mark.tf

NEW_KERAS = pytest.mark.skipif(not KERAS_3, reason="Keras 2 has no such thing")
Change = Callable[[Any, Any], Any]


class Scaled(layers.Layer):
    """A layer with settings of its own, which `call` reads."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale = 1.0
        self.shifts = [0.0, 0.0]
        self.named = {"power": 1.0}
        self.table = np.ones(3, "float32")
        self.inner = layers.Dense(3, name="inner")

    def call(self, x: Any) -> Any:
        y = self.inner(x) * self.scale + self.shifts[0]
        return y ** self.named["power"] * self.table


class Own(keras.Model):
    """A model whose layers are attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.front = layers.Dense(4, name="front")
        self.back = layers.Dense(2, name="back")

    def call(self, x: Any) -> Any:
        return self.back(self.front(x))


def deep() -> Any:
    return keras.Sequential(
        [
            layers.Input((3,)),
            layers.Dense(3, activation="tanh", kernel_regularizer="l2", name="dense"),
            layers.BatchNormalization(name="norm"),
            Scaled(name="scaled"),
            layers.Dense(2, name="last"),
        ]
    )


def plain() -> Any:
    return keras.Sequential(
        [layers.Input((3,)), layers.Dense(3, activation="tanh"), layers.Dense(2)]
    )


def own() -> Any:
    model = Own()
    model(ones(1, 3))
    return model


def sgd(model: Any = None) -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.5)


def adam() -> Any:
    return keras.optimizers.Adam(0.1)


def scheduled() -> Any:
    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5))


def data(seed: int = 0, size: int = 4) -> list[Batch]:
    source = np.random.default_rng(seed)
    return [{"x": tf.constant(source.standard_normal((size, 3)), tf.float32)} for _ in range(2)]


def double(x: Any) -> Any:
    return 2 * x


def assigns(name: str, value: Any, layer: str = "dense") -> Change:
    """Return what sets an attribute of a layer, given by its name."""

    def change(model: Any, optimizer: Any) -> None:
        setattr(model.get_layer(layer), name, value)

    return change


def optimizes(**values: Any) -> Change:
    """Return what sets attributes of an optimizer."""

    def change(model: Any, optimizer: Any) -> None:
        for name, value in values.items():
            setattr(optimizer, name, value)

    return change


def patch_call(model: Any, optimizer: Any) -> None:
    layer = model.get_layer("last")
    call = layer.call
    object.__setattr__(layer, "call", lambda inputs, *args, **kwargs: 3 * call(inputs))


def replace_weight(model: Any, optimizer: Any) -> None:
    layer = model.get_layer("last")
    if KERAS_3:
        layer._tracker.unlock()
    fresh = type(layer.bias)(tf.constant([0.5, -0.5]))
    if KERAS_3:
        layer._untrack_variable(layer.bias)
    layer.bias = fresh


def freeze_variable(model: Any, optimizer: Any) -> None:
    model.get_layer("dense").kernel.trainable = False


def shift_in_place(model: Any, optimizer: Any) -> None:
    model.get_layer("scaled").shifts[0] = 1.5


def power_in_place(model: Any, optimizer: Any) -> None:
    model.get_layer("scaled").named["power"] = 2.0


def other_regularizer(model: Any, optimizer: Any) -> None:
    layer = model.get_layer("dense")
    if KERAS_3:
        layer.kernel.regularizer = keras.regularizers.L2(0.5)
    else:
        layer._callable_losses[:] = [lambda: 0.5 * tf.reduce_sum(layer.kernel**2)]


def other_strength(model: Any, optimizer: Any) -> None:
    regularizer = model.get_layer("dense").kernel_regularizer
    regularizer.l2 = type(regularizer.l2)(0.25) if KERAS_3 else np.float32(0.25)


def constrain(model: Any, optimizer: Any) -> None:
    kernel = model.get_layer("dense").kernel
    constraint = keras.constraints.MaxNorm(0.1)
    if KERAS_3:
        kernel.constraint = constraint
    else:
        kernel._constraint = constraint


# the change, and what the reason says
CHANGES: dict[str, tuple[Change, str]] = {
    "activation": (
        assigns("activation", keras.activations.relu),
        "layer 'dense' of model 'net'",
    ),
    "own number": (
        assigns("scale", 2.0, "scaled"),
        "layer 'scaled' of model 'net'",
    ),
    "own list": (
        shift_in_place,
        "layer 'scaled' of model 'net'",
    ),
    "own dict": (
        power_in_place,
        "layer 'scaled' of model 'net'",
    ),
    "momentum": (
        assigns("momentum", 0.1, "norm"),
        "layer 'norm' of model 'net'",
    ),
    "epsilon of a layer": (
        assigns("epsilon", 0.5, "norm"),
        "layer 'norm' of model 'net'",
    ),
    "regularizer": (other_regularizer, "model 'net'"),
    "strength": (other_strength, "model 'net'"),
    "constraint": (constrain, "model 'net'"),
    "call": (patch_call, "layer 'last' of model 'net'"),
    "clipnorm": (
        optimizes(clipnorm=0.01),
        "the optimizer of model 'net'",
    ),
    "clipvalue": (
        optimizes(clipvalue=0.001),
        "the optimizer of model 'net'",
    ),
    "global_clipnorm": (
        optimizes(global_clipnorm=0.01),
        "the optimizer of model 'net'",
    ),
    "momentum of SGD": (
        optimizes(momentum=0.9),
        "the optimizer of model 'net'",
    ),
    "nesterov": (
        optimizes(nesterov=True),
        "the optimizer of model 'net'",
    ),
}
if KERAS_3:
    CHANGES["variable"] = (
        freeze_variable,
        "model 'net'",
    )


@EITHER_WAY
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_counts_from_the_next_opening_on(name: str, eager: bool) -> None:
    change, reason = CHANGES[name]
    model, twin = twins(deep)
    fastnet.build(lambda: model, sgd, model_name="net")
    optimizer = sgd()
    optimizer.build(twin.trainable_variables)
    network = TFNetwork(regression(model))
    for _ in range(2):
        train(network, data(), eager=eager)
        loop(twin, optimizer, data(), to_zero)
        assert_close(model, twin)
    change(model, model.current_optimizer)
    change(twin, optimizer)
    for _ in range(2):
        train(network, data(1), eager=eager)
        loop(twin, optimizer, data(1), to_zero)
        assert_close(model, twin, 1e-4)
    if not eager:
        assert len(network.traces) == 2
        assert reason in reasons(network)[1]


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_counts_at_once_in_an_eager_opening(name: str) -> None:
    change, _ = CHANGES[name]
    model, twin = twins(deep)
    fastnet.build(lambda: model, sgd, model_name="net")
    optimizer = sgd()
    optimizer.build(twin.trainable_variables)
    network = TFNetwork(regression(model))
    with network(mode="train", epoch=1, eager=True):
        for changes in (False, True):
            if changes:
                change(model, model.current_optimizer)
                change(twin, optimizer)
            for batch in data(int(changes)):
                network.run_step(batch)
                loop(twin, optimizer, [batch], to_zero)
                assert_close(model, twin, 1e-4)


class TestTheMiddleOfAnEagerOpening:
    @NEW_KERAS
    def test_an_optimizer_that_is_made_ready_anew(self) -> None:
        model, twin = twins(plain)
        fastnet.build(lambda: model, sgd)
        optimizer = sgd()
        network = TFNetwork(regression(model))
        with network(mode="train", epoch=1, eager=True):
            for changes in (False, True):
                if changes:
                    for one, each in ((model, model.current_optimizer), (twin, optimizer)):
                        one.layers[0].enable_lora(2)
                        each.built = False
                        each.build(one.trainable_variables)
                    lora = model.layers[0].lora_kernel_a
                    twin.layers[0].lora_kernel_a.assign(lora)
                for batch in data():
                    network.run_step(batch)
                    loop(twin, optimizer, [batch], to_zero)
                    assert_close(model, twin, 1e-4)

    @NEW_KERAS
    def test_an_optimizer_with_a_patched_update(self) -> None:
        model = fastnet.build(plain, sgd)
        network = TFNetwork(regression(model))
        seen: list[int] = []

        def apply(gradients: Any, variables: Any = None) -> None:
            seen.append(len(gradients))

        with network(mode="train", epoch=1, eager=True):
            network.run_step(data()[0])
            before = model.get_weights()
            object.__setattr__(model.current_optimizer, "apply", apply)
            network.run_step(data()[0])
        assert seen == [4]
        assert all(map(np.array_equal, before, model.get_weights()))

    def test_another_optimizer(self) -> None:
        model, twin = twins(plain)
        fastnet.build(lambda: model, sgd)
        network = TFNetwork(regression(model))
        with network(mode="train", epoch=1, eager=True):
            for _ in range(2):
                optimizer = sgd()
                for batch in data():
                    network.run_step(batch)
                    loop(twin, optimizer, [batch], to_zero)
                model.current_optimizer = sgd()
                model.current_optimizer.build(model.trainable_variables)
        assert_close(model, twin, 1e-4)


@pytest.mark.parametrize(
    ("name", "value"), [("epsilon", 0.1), ("beta_1", 0.1), ("beta_2", 0.5), ("amsgrad", False)]
)
def test_constants_of_adam(name: str, value: Any) -> None:
    model, twin = twins(plain)
    fastnet.build(lambda: model, adam, model_name="net")
    optimizer = adam()
    optimizer.build(twin.trainable_variables)
    network = TFNetwork(regression(model))
    for values in ({}, {name: value}):
        optimizes(**values)(model, model.current_optimizer)
        optimizes(**values)(twin, optimizer)
        for _ in range(2):
            train(network, data())
            loop(twin, optimizer, data(), to_zero)
    assert_close(model, twin, 1e-3)
    wanted = [f"the optimizer of model 'net'.{name} has changed"] if value else []
    assert reasons(network) == [first("train"), *wanted]


class TestLearningRates:
    def test_a_schedule_is_replaced_by_another(self) -> None:
        model, twin = twins(deep)
        fastnet.build(lambda: model, scheduled, model_name="net")
        optimizer = scheduled()
        network = TFNetwork(regression(model))
        for _ in range(2):
            train(network, data())
            loop(twin, optimizer, data(), to_zero)
            for one in (model.current_optimizer, optimizer):
                one.learning_rate = keras.optimizers.schedules.ExponentialDecay(0.3, 1, 0.9)
        assert_close(model, twin)
        assert reasons(network)[1:] == ["the optimizer of model 'net'._learning_rate has changed"]

    @pytest.mark.skipif(not KERAS_3, reason="docs/overview.md: needs Keras 3")
    def test_a_number_is_replaced_by_a_schedule(self) -> None:
        model, twin = twins(deep)
        fastnet.build(lambda: model, sgd, model_name="net")
        optimizer = sgd()
        network = TFNetwork(regression(model))
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
        for _ in range(3):
            train(network, data())
            loop(twin, optimizer, data(), to_zero)
            for one in (model.current_optimizer, optimizer):
                one.learning_rate = schedule
        assert_close(model, twin)
        assert len(network.traces) == 2

    def test_what_a_schedule_holds(self) -> None:
        model, twin = twins(deep)
        fastnet.build(lambda: model, scheduled, model_name="net")
        optimizer = scheduled()
        network = TFNetwork(regression(model))
        for _ in range(2):
            train(network, data())
            loop(twin, optimizer, data(), to_zero)
            for one in (model.current_optimizer, optimizer):
                one._learning_rate.decay_rate = 1.0
        assert_close(model, twin)
        assert len(network.traces) == 2

    def test_a_number_needs_no_trace(self) -> None:
        model = fastnet.build(deep, sgd)
        network = TFNetwork(regression(model))
        for rate in (0.1, 0.2):
            model.current_optimizer.learning_rate = rate
            train(network, data())
        assert len(network.traces) == 1


class TestLayers:
    @EITHER_WAY
    def test_a_replaced_one_of_a_subclassed_model(self, eager: bool) -> None:
        model, twin = twins(own)
        fastnet.build(lambda: model, None, model_name="net")
        network = TFNetwork(ModelOp(model, "x", "y"))
        for _ in range(2):
            for batch in data():
                result = infer(network, batch, eager=eager)["y"]
                np.testing.assert_allclose(result, twin(batch["x"]), rtol=1e-4, atol=1e-6)
            for one in (model, twin):
                if KERAS_3:
                    one._tracker.unlock()
                one.back = layers.Dense(2, kernel_initializer="ones", name="new")
        if not eager:
            assert len(network.traces) == 2

    @EITHER_WAY
    def test_popped_and_added(self, eager: bool) -> None:
        model, twin = twins(deep)
        fastnet.build(lambda: model, None, model_name="net")
        network = TFNetwork(ModelOp(model, "x", "y"))
        wanted = []
        for step in range(3):
            batch = data()[0]
            result = infer(network, batch, eager=eager)["y"]
            np.testing.assert_allclose(
                result, twin(batch["x"], training=False), rtol=1e-4, atol=1e-6
            )
            wanted.append(tuple(result.shape))
            for one in (model, twin):
                if step == 0:
                    one.pop()
                else:
                    one.add(layers.Dense(5, kernel_initializer="ones"))
        assert wanted == [(4, 2), (4, 3), (4, 5)]
        if not eager:
            assert len(network.traces) == 3

    @pytest.mark.parametrize("rate", [0.0, 0.9])
    def test_the_rate_of_a_dropout(self, rate: float) -> None:
        def make() -> Any:
            return keras.Sequential([layers.Input((1000,)), layers.Dropout(0.5, name="drop")])

        model = fastnet.build(make, None, model_name="net")
        network = TFNetwork(ModelOp(model, "x", "y"))
        batch = {"x": ones(10, 1000)}
        assert 0.45 < np.mean(infer(network, batch, "train")["y"].numpy() == 0) < 0.55
        model.get_layer("drop").rate = rate
        zeros = np.mean(infer(network, batch, "train")["y"].numpy() == 0)
        assert abs(zeros - rate) < 0.05
        assert "layer 'drop' of model 'net'.rate" in reasons(network)[1]

    def test_a_replaced_weight(self) -> None:
        model, twin = twins(deep)
        fastnet.build(lambda: model, None, model_name="net")
        network = TFNetwork(ModelOp(model, "x", "y"))
        for _ in range(2):
            batch = data()[0]
            np.testing.assert_allclose(
                infer(network, batch)["y"], twin(batch["x"], training=False), rtol=1e-4, atol=1e-6
            )
            replace_weight(model, None)
            replace_weight(twin, None)
        assert len(network.traces) == 2
        assert "model 'net'" in reasons(network)[1]

    @NEW_KERAS
    def test_a_policy(self) -> None:
        model, twin = twins(deep)
        fastnet.build(lambda: model, None, model_name="net")
        network = TFNetwork(ModelOp(model, "x", "y"))
        for dtype in ("float32", "float16"):
            batch = data()[0]
            result = infer(network, batch)["y"]
            wanted = twin(batch["x"], training=False)
            assert result.dtype == wanted.dtype == dtype
            np.testing.assert_allclose(result, wanted, rtol=1e-3)
            for one in (model, twin):
                one.get_layer("last").dtype_policy = "mixed_float16"
        assert "layer 'last' of model 'net'" in reasons(network)[1]

    @NEW_KERAS
    @EITHER_WAY
    def test_that_were_quantized(self, eager: bool) -> None:
        def make() -> Any:
            return keras.Sequential(
                [layers.Input((3,)), layers.Dense(8, name="one"), layers.Dense(2, name="two")]
            )

        model, twin = twins(make)
        fastnet.build(lambda: model, None, model_name="net")
        network = TFNetwork(ModelOp(model, "x", "y"))
        for _ in range(2):
            for batch in data():
                wanted = twin(batch["x"], training=False)
                result = infer(network, batch, eager=eager)["y"]
                np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-6)
            for one in (model, twin):
                if one.layers[0].dtype_policy.quantization_mode is None:
                    one.quantize("int8")
        if not eager:
            assert len(network.traces) == 2
            assert "layer 'one' of model 'net'" in reasons(network)[1]

    @NEW_KERAS
    @EITHER_WAY
    def test_that_were_adapted(self, eager: bool) -> None:
        model, twin = twins(deep)
        fastnet.build(lambda: model, sgd, model_name="net")
        network = TFNetwork(regression(model))
        train(network, data(), eager=eager)
        optimizer = sgd()
        loop(twin, optimizer, data(), to_zero)
        for one in (model, twin):
            one.get_layer("dense").enable_lora(2)
        own_a = model.get_layer("dense").lora_kernel_a
        twin.get_layer("dense").lora_kernel_a.assign(own_a)
        # an optimizer of Keras 3 takes no more variables than it was made for
        model.optimizer, optimizer = sgd(), sgd()
        kernel = np.array(model.get_layer("dense")._kernel)
        before = np.array(model.get_layer("dense").lora_kernel_b)
        train(network, data(1), eager=eager)
        loop(twin, optimizer, data(1), to_zero)
        assert_close(model, twin)
        assert np.array_equal(kernel, model.get_layer("dense")._kernel)
        assert not np.array_equal(before, model.get_layer("dense").lora_kernel_b)
        if not eager:
            assert len(network.traces) == 2

    @NEW_KERAS
    @EITHER_WAY
    def test_that_were_adapted_with_the_same_optimizer(self, eager: bool) -> None:
        model, twin = twins(deep)
        fastnet.build(lambda: model, sgd, model_name="net")
        network = TFNetwork(regression(model))
        train(network, data(), eager=eager)
        optimizer = sgd()
        loop(twin, optimizer, data(), to_zero)
        for one in (model, twin):
            one.get_layer("dense").enable_lora(2)
        with pytest.raises(ValueError, match="variable") as wanted:
            loop(twin, optimizer, data(1), to_zero)
        with pytest.raises(type(wanted.value), match="variable"):
            train(network, data(1), eager=eager)


class TestGoingBack:
    def test_takes_the_old_graph(self) -> None:
        model, twin = twins(deep)
        fastnet.build(lambda: model, sgd, model_name="net")
        optimizer = sgd()
        network = TFNetwork(regression(model))
        for clipnorm in (None, 0.01, None, 0.01):
            model.current_optimizer.clipnorm = optimizer.clipnorm = clipnorm
            train(network, data())
            loop(twin, optimizer, data(), to_zero)
        assert_close(model, twin, 1e-4)
        assert len(network.traces) == 2, network.traces

    def test_an_int_is_no_float_and_no_bool(self) -> None:
        op = Valued("x", "y")
        network = TFNetwork(op)
        for value in (1, 1.0, True, 1, 1.0, True):
            op.value = value
            assert infer(network, {"x": ones(1)})["y"] == type(value).__name__
        assert len(network.traces) == 3

    def test_no_more_than_a_step_does(self) -> None:
        # what steps, graphs and another network with the same model do is no change
        model = fastnet.build(deep, sgd, model_name="net")
        network, other = (TFNetwork(regression(model)) for _ in range(2))
        for _ in range(3):
            for one in (network, other):
                train(one, data())
                infer(one, data()[0], "eval")
                train(one, data(), eager=True)
        assert [len(one.traces) for one in (network, other)] == [2, 2]

    def test_weights_that_are_made_in_the_first_step_are_no_change(self) -> None:
        model = fastnet.build(
            lambda: keras.Sequential([layers.Dense(4), layers.BatchNormalization()]), sgd
        )
        network = TFNetwork(regression(model))
        for _ in range(2):
            train(network, data())
            infer(network, data()[0], "eval")
        assert reasons(network) == [first("train"), first("eval")]


def every_layer() -> list[Any]:
    kinds = [
        layers.Dense(2),
        layers.LSTM(2, dropout=0.5),
        layers.GRU(2),
        layers.Bidirectional(layers.SimpleRNN(2)),
        layers.Conv1D(2, 1),
        layers.GaussianNoise(0.5),
        layers.SpatialDropout1D(0.5),
        layers.LayerNormalization(),
        layers.ActivityRegularization(0.1),
        layers.TimeDistributed(layers.Dense(2)),
        layers.Lambda(double),
        layers.UnitNormalization(),
    ]
    return [pytest.param(kind, id=type(kind).__name__) for kind in kinds]


@pytest.mark.parametrize("layer", every_layer())
def test_steps_change_nothing_of_a_layer(layer: Any) -> None:
    model = fastnet.build(lambda: keras.Sequential([layers.Input((3, 4)), layer]), None)
    network = TFNetwork(ModelOp(model, "x", "y"))
    for mode in ("train", "eval", "train", "eval"):
        infer(network, {"x": ones(2, 3, 4)}, mode)
        infer(network, {"x": ones(2, 3, 4)}, mode, eager=True)
    assert len(network.traces) == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.Adam(use_ema=True) if KERAS_3 else keras.optimizers.Adam(),
        lambda: keras.optimizers.RMSprop(centered=True),
        lambda: keras.optimizers.AdamW(),
        lambda: keras.optimizers.Ftrl(),
        lambda: keras.optimizers.Nadam(),
        scheduled,
        "adam",
        "sgd",
    ],
)
def test_steps_change_nothing_of_an_optimizer(make: Any) -> None:
    model = fastnet.build(deep, make)
    network = TFNetwork(regression(model))
    for _ in range(3):
        train(network, data())
        train(network, data(), eager=True)
    assert len(network.traces) == 1


class Valued(TensorOp):
    """Names the type of an attribute."""

    value: Any = None

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        return type(self.value).__name__


class Scale(TensorOp):
    """An op with settings of its own."""

    alpha = 1.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.added = [0.0]
        self.named = {"beta": 0.0}
        self.settings = SimpleNamespace(gamma=0.0)

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        shift = self.added[0] + self.named["beta"] + self.settings.gamma
        return data * self.alpha + shift


def change_alpha(op: Any) -> None:
    op.alpha = 3.0


def change_list(op: Any) -> None:
    op.added[0] = 3.0


def change_dict(op: Any) -> None:
    op.named["beta"] = 3.0


def change_settings(op: Any) -> None:
    op.settings.gamma = 3.0


class TestOps:
    @EITHER_WAY
    @pytest.mark.parametrize(
        ("change", "name", "wanted"),
        [
            (change_alpha, "alpha", 3.0),
            (change_list, "added[0]", 4.0),
            (change_dict, "named['beta']", 4.0),
            (change_settings, "settings.gamma", 4.0),
        ],
    )
    def test_attributes(self, change: Any, name: str, wanted: float, eager: bool) -> None:
        op = Scale("x", "y")
        network = TFNetwork([LambdaOp(lambda x: x, "x", "x"), op])
        assert infer(network, {"x": ones(1)}, eager=eager)["y"].numpy() == 1.0
        change(op)
        for _ in range(2):
            assert infer(network, {"x": ones(1)}, eager=eager)["y"].numpy() == wanted
        if not eager:
            assert reasons(network) == [
                first(),
                f"op 1 (Scale).{name} has changed",
            ]

    def test_counters_are_no_changes(self) -> None:
        op = Counting("x", "y")
        networks = [TFNetwork(op), TFNetwork([op])]
        for _ in range(3):
            for network in networks:
                for mode in ("eval", "infer"):
                    infer(network, {"x": ones(1)}, mode)
        assert op.runs == 4

    def test_counters_that_go_on_without_a_graph_are(self) -> None:
        op = Counting("x", "y")
        network = TFNetwork(op)
        for eager in (False, True, False):
            infer(network, {"x": ones(1)}, eager=eager)
        assert op.runs == 3
        assert reasons(network)[1:] == ["op 0 (Counting).runs has changed"]

    def test_a_layer_in_a_closure(self) -> None:
        layer = layers.Dense(1, kernel_initializer="ones")
        network = TFNetwork(LambdaOp(lambda x: layer(x), "x", "y"))
        assert infer(network, {"x": -ones(1, 2)})["y"].numpy() == -2.0
        layer.activation = tf.nn.relu
        assert infer(network, {"x": -ones(1, 2)})["y"].numpy() == 0.0
        assert "activation" in reasons(network)[1]

    @pytest.mark.parametrize(
        "around",
        [
            lambda op: Fuse([op]),
            lambda op: Repeat(op, 1),
            lambda op: OneOf(op),
            lambda op: Sometimes(op, 1.0),
            lambda op: Fuse([Repeat(OneOf(op), 1)]),
        ],
        ids=["Fuse", "Repeat", "OneOf", "Sometimes", "nested"],
    )
    def test_inside_of_others(self, around: Any) -> None:
        inner = Scale("x", "x")
        network = TFNetwork(around(inner))
        for alpha in (1.0, 3.0, 1.0):
            inner.alpha = alpha
            assert infer(network, {"x": ones(1)})["x"].numpy() == alpha
        assert len(network.traces) == 2
        assert reasons(network)[1].startswith("op 0 (")
        assert reasons(network)[1].endswith(".alpha has changed")

    def test_in_the_middle_of_an_opening(self) -> None:
        op = Scale("x", "y")
        network = TFNetwork(op)
        with network(mode="infer", epoch=1):
            assert network.run_step({"x": ones(1)})["y"].numpy() == 1.0
            op.alpha = 3.0
            # what was traced stands until the next opening, but what is traced now is of now
            assert network.run_step({"x": ones(1)})["y"].numpy() == 1.0
            assert network.run_step({"x": ones(1, 1)})["y"].numpy() == 3.0
            assert network.run_step({"x": ones(1)})["y"].numpy() == 3.0
        assert infer(network, {"x": ones(1)})["y"].numpy() == 3.0
        assert reasons(network)[1] == "op 0 (Scale).alpha has changed"
