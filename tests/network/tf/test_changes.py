"""Changes of what a graph was traced from take effect on the next entry."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import RepeatScheduler
from tests.network.keras_models import (
    KERAS_3,
    Batch,
    assert_close,
    infer,
    keras,
    layers,
    line,
    loop,
    regression,
    tf,
    to_zero,
    train,
    twins,
)
from tests.network.tf_programs import first, ones, reasons

pytestmark = pytest.mark.tf

Change = Callable[[Any, Any], Any]


class Scaled(layers.Layer):
    """A layer with settings of its own, which `call` reads."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shifts = [0.0, 0.0]
        self.inner = layers.Dense(3, name="inner")

    def call(self, x: Any) -> Any:
        return self.inner(x) + self.shifts[0]


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


def replace_weight(model: Any) -> None:
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


DENSE, SCALED = (f"layer '{name}' of model 'net'" for name in ("dense", "scaled"))
OPTIMIZER = "the optimizer of model 'net'"

# The change, and what the reason says; random programs (tests/differential) draw further ones.
CHANGES: dict[str, tuple[Change, str]] = {
    "a frozen layer": (assigns("trainable", False), DENSE),
    "own list": (shift_in_place, SCALED),
    "regularizer": (other_regularizer, "model 'net'"),
    "strength": (other_strength, "model 'net'"),
    "constraint": (constrain, "model 'net'"),
    "call": (patch_call, "layer 'last' of model 'net'"),
    "clipnorm": (optimizes(clipnorm=0.01), OPTIMIZER),
    "nesterov": (optimizes(nesterov=True), OPTIMIZER),
}
if KERAS_3:
    CHANGES["variable"] = (freeze_variable, "model 'net'")
# A few changes of each kind show that compiled and eager steps see them, too.
WAYS = {
    "static": tuple(CHANGES),
    "eager": ("a frozen layer", "constraint", "call", "clipnorm"),
    "compiled": ("a frozen layer",),
}


@pytest.mark.parametrize(("way", "name"), [(way, name) for way in WAYS for name in WAYS[way]])
def test_a_change_counts_from_the_next_context_on(name: str, way: str) -> None:
    change, reason = CHANGES[name]
    model, twin = twins(deep)
    fastnet.build(lambda: model, sgd, model_name="net")
    optimizer = sgd()
    optimizer.build(twin.trainable_variables)
    network = TFNetwork(regression(model), compile=way == "compiled")
    for changes in (False, True):
        if changes:
            change(model, model.current_optimizer)
            change(twin, optimizer)
        train(network, data(int(changes)), eager=way == "eager")
        loop(twin, optimizer, data(int(changes)), to_zero)
        assert_close(model, twin, 1e-4)
    if way == "eager":
        assert network.traces == ()
        return
    assert len(network.traces) == 2
    assert reason in reasons(network)[1]
    assert [trace.fallback for trace in network.traces] == [None, None]
    assert all((trace.compile_seconds > 0) is (way == "compiled") for trace in network.traces)


def other_schedule(optimizer: Any) -> None:
    optimizer.learning_rate = keras.optimizers.schedules.ExponentialDecay(0.3, 1, 0.9)


@pytest.mark.parametrize(
    ("make", "change", "merge"),
    [
        (scheduled, other_schedule, 1),
        (scheduled, lambda optimizer: setattr(optimizer._learning_rate, "decay_rate", 1.0), 2),
        (sgd, other_schedule, 2),
    ],
    ids=["another", "its own", "a first"],
)
def test_schedules_of_rates(make: Any, change: Any, merge: int) -> None:
    model, twin = twins(plain)
    fastnet.build(lambda: model, make, model_name="net")
    optimizer = make()
    network = TFNetwork(regression(model, merge_grad=merge))
    for changes in (False, True):
        for one in (model.current_optimizer, optimizer) if changes else ():
            change(one)
        train(network, data())
        loop(twin, optimizer, data(), to_zero, merge)
    assert_close(model, twin)
    assert "the optimizer of model 'net'._learning_rate" in reasons(network)[1]


def replace_layer(model: Any) -> None:
    if KERAS_3:
        model._tracker.unlock()
    model.back = layers.Dense(2, kernel_initializer="ones", name="new")


def set_policy(model: Any) -> None:
    model.get_layer("last").dtype_policy = "mixed_float16"


MODELS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a layer of a subclassed model": (own, replace_layer),
    "added": (plain, lambda model: model.add(layers.Dense(5, kernel_initializer="ones"))),
    "a weight": (deep, replace_weight),
}
if KERAS_3:
    MODELS["a policy"] = (deep, set_policy)
    MODELS["quantized"] = (plain, lambda model: model.quantize("int8"))


@pytest.mark.parametrize("name", MODELS)
def test_changes_of_models(name: str) -> None:
    make, change = MODELS[name]
    model, twin = twins(make)
    fastnet.build(lambda: model, None, model_name="net")
    network = TFNetwork(ModelOp(model, "x", "y"))
    for changes in (False, True):
        for one in (model, twin) if changes else ():
            change(one)
        for batch in data():
            found, wanted = infer(network, batch)["y"], twin(batch["x"])
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-6)
    assert len(network.traces) == 2
    assert "model 'net'" in reasons(network)[1]


@pytest.mark.parametrize("name", ["_seed", "history"])
def test_attributes_of_a_layer_whatever_they_are_called(name: str) -> None:
    class Own(layers.Layer):
        def call(self, x: Any) -> Any:
            return x * getattr(self, name)

    layer = Own()
    setattr(layer, name, 1.0)
    model = fastnet.build(lambda: keras.Sequential([layers.Input((1,)), layer]), None)
    network = TFNetwork(ModelOp(model, "x", "y"))
    for value in (1.0, 3.0, 1.0):
        setattr(layer, name, value)
        assert infer(network, {"x": ones(1, 1)})["y"].numpy().tolist() == [[value]]
    assert len(network.traces) == 2


def test_a_custom_gradient() -> None:
    slope = [1.0]

    @tf.custom_gradient
    def scaled(x: Any) -> Any:
        return tf.identity(x), lambda gradient: gradient * slope[0]

    model, twin = twins(plain)
    fastnet.build(lambda: model, sgd)
    loss = LambdaOp(lambda y: tf.reduce_mean(tf.square(scaled(y))), "y", "loss")
    network = TFNetwork([ModelOp(model, "x", "y"), loss, UpdateOp(model, "loss")])
    optimizer = sgd()
    for value in (1.0, 2.0):
        slope[0] = value
        train(network, data())
        loop(twin, optimizer, data(), lambda y, batch: to_zero(scaled(y), batch))
    assert_close(model, twin)
    assert len(network.traces) == 2


def test_steps_of_another_network_are_no_changes() -> None:
    model = fastnet.build(deep, sgd, model_name="net")
    network, other = (TFNetwork(regression(model)) for _ in range(2))
    for _ in range(3):
        for one in (network, other):
            train(one, data())
            infer(one, data()[0], "eval")
            train(one, data(), eager=True)
    assert [len(one.traces) for one in (network, other)] == [2, 2]


def test_steps_change_nothing_of_layers() -> None:
    def make() -> Any:
        return keras.Sequential(
            [
                layers.Input((3, 4)),
                layers.LSTM(2, dropout=0.5, return_sequences=True),
                layers.GaussianNoise(0.5),
                layers.ActivityRegularization(0.1),
                layers.TimeDistributed(layers.Dense(2)),
                layers.Lambda(double),
            ]
        )

    model = fastnet.build(make, None)
    network = TFNetwork(ModelOp(model, "x", "y"))
    for mode in ("train", "eval", "train", "eval"):
        infer(network, {"x": ones(2, 3, 4)}, mode)
        infer(network, {"x": ones(2, 3, 4)}, mode, eager=True)
    assert len(network.traces) == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.Adam(use_ema=True) if KERAS_3 else keras.optimizers.Adam(),
        lambda: keras.optimizers.Nadam(),
        scheduled,
    ],
)
def test_steps_change_nothing_of_an_optimizer(make: Any) -> None:
    model = fastnet.build(plain, make)
    network = TFNetwork(regression(model))
    for _ in range(3):
        train(network, data())
        train(network, data(), eager=True)
    assert len(network.traces) == 1


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


class TestOps:
    def test_attributes(self) -> None:
        op = Scale("x", "y")
        network = TFNetwork([LambdaOp(lambda x: x, "x", "x"), op])
        changes: list[tuple[Callable[[], Any], str, float]] = [
            (lambda: None, "", 1.0),
            (lambda: setattr(op, "alpha", 3.0), "alpha", 3.0),
            (lambda: op.added.__setitem__(0, 3.0), "added[0]", 6.0),
            (lambda: op.named.update(beta=3.0), "named['beta']", 9.0),
            (lambda: setattr(op.settings, "gamma", 3.0), "settings.gamma", 12.0),
        ]
        for change, _, wanted in changes:
            change()
            for _ in range(2):
                assert infer(network, {"x": ones(1)})["y"].numpy() == wanted
        paths = [f"op 1 (Scale).{name} has changed" for _, name, _ in changes[1:]]
        assert reasons(network) == [first(), *paths]

    def test_while_the_network_is_open(self) -> None:
        op = Scale("x", "y")
        network = TFNetwork(op)
        with network(mode="infer", epoch=1):
            assert network.run_step({"x": ones(1)})["y"].numpy() == 1.0
            op.alpha = 3.0
            # Within this context a trace keeps its value; a new trace takes the current one.
            assert network.run_step({"x": ones(1)})["y"].numpy() == 1.0
            assert network.run_step({"x": ones(1, 1)})["y"].numpy() == 3.0
            assert network.run_step({"x": ones(1)})["y"].numpy() == 3.0
        assert infer(network, {"x": ones(1)})["y"].numpy() == 3.0
        assert reasons(network)[1] == "op 0 (Scale).alpha has changed"


class CountingRuns(TensorOp):
    """Counts its runs, which tracing changes."""

    def __init__(self, fn: Any = None) -> None:
        super().__init__("x", "x")
        self.runs = 0
        self.factor = 1.0
        self.fn = fn

    def forward(self, data: Any, state: Any) -> Any:
        self.runs += 1
        if self.fn is not None:
            self.fn()
        return data * self.factor


def test_change_during_another_networks_trace_counts() -> None:
    ours = CountingRuns()
    network = TFNetwork(ours)
    assert infer(network, {"x": ones(1)})["x"].numpy().tolist() == [1.0]
    other = TFNetwork(CountingRuns(lambda: setattr(ours, "factor", 3.0)))
    infer(other, {"x": ones(1)})
    assert infer(network, {"x": ones(1)})["x"].numpy().tolist() == [3.0]


def test_alternating_optimizers_beside_a_counter_are_traced_once_each() -> None:
    counter = CountingRuns()
    optimizers = [lambda: keras.optimizers.SGD(0.1), lambda: keras.optimizers.SGD(0.2)]
    model = fastnet.build(line, RepeatScheduler(optimizers), model_name="model")
    network = TFNetwork([counter, *regression(model)])
    for epoch in range(1, 7):
        train(network, [{"x": ones(3, 2)}], epoch=epoch)
    assert counter.runs == 2
    assert len(network.traces) == 2


def test_guards_are_made_while_other_threads_trace() -> None:
    def run() -> None:
        for _ in range(20):
            infer(TFNetwork(CountingRuns()), {"x": ones(1)})

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(run) for _ in range(4)]:
                future.result()
    finally:
        sys.setswitchinterval(before)
