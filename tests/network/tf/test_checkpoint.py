"""Checkpoints of TensorFlow runs: exact resume, and failed loads that change nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.loss import LossOp, SuperLoss
from fastnet.op.tensorop.model import EMA, ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from tests.network.keras_models import (
    BY_NAME,
    KERAS_3,
    KINDS,
    keras,
    layers,
    same_weights,
    variables_of,
)

pytestmark = pytest.mark.tf

STEPS, MERGED = 10, 3


def model_fn() -> Any:
    return keras.Sequential(
        [
            layers.Input((6,)),
            layers.Dense(8),
            # Checkpoints do not include the random numbers of Keras 2.
            *([layers.Dropout(0.5)] if KERAS_3 else []),
            layers.BatchNormalization(),
            layers.Dense(3),
        ]
    )


def adam() -> Any:
    return BY_NAME.Adam(0.05, amsgrad=True)


def momentum() -> Any:
    falling = keras.optimizers.schedules.ExponentialDecay(0.02, 1, 0.9)
    return BY_NAME.SGD(falling, momentum=0.9)


class Squares(LossOp):
    held: Any = None

    def forward(self, data: Any, state: Any) -> Any:
        return tf.reduce_mean((data[0] - data[1]) ** 2)


class Rising(TensorOp):
    """Multiplies by a growing variable, and adds a random number."""

    def __init__(self) -> None:
        super().__init__(inputs="x", outputs="x")
        self.factor = tf.Variable(1.0)

    def forward(self, data: Any, state: Any) -> Any:
        self.factor.assign(self.factor * 1.01)
        return data * self.factor + tf.random.get_global_generator().uniform(())

    def state_dict(self) -> Any:
        return {"factor": self.factor.read_value()}

    def load_state_dict(self, state: Any) -> None:
        assert tf.is_tensor(state["factor"])
        self.factor.assign(state["factor"])


class Run:
    def __init__(self, seed: int) -> None:
        seed_all(seed)
        self.model = fastnet.build(
            model_fn, EpochScheduler({1: adam, 2: momentum}), model_name="net"
        )
        self.rising = Rising()
        self.update = UpdateOp(self.model, "loss", merge_grad=MERGED)
        self.ema = EMA(self.model, decay=0.9)
        loss = Squares(("y", "t"), "loss")
        loss.held = tf.Variable([float(seed)] * 2)
        self.network = fastnet.Network(
            [self.rising, ModelOp(self.model, "x", "y"), loss, self.update, self.ema]
        )

    def go(self, first: int, last: int, eager: bool = True) -> list[float]:
        losses = []
        for step in range(first, last):
            with self.network(mode="train", epoch=epoch_of(step), eager=eager):
                losses.append(float(self.network.run_step(batch(step))["loss"]))
        return losses

    def everything(self) -> Any:
        """Copy the state."""
        optimizers = self.model.optimizer.get_all_values()
        kept = [
            *self.model.variables,
            *self.ema.averaged.variables,
            *[one for each in optimizers for one in variables_of(each)],
            self.rising.factor,
            self.network.ops[2].held,
            tf.random.get_global_generator().state,
        ]
        rate, update = optimizers[0].learning_rate, self.update.state_dict()
        return [
            *[np.array(one.numpy()) for one in kept],
            *update["gradients"],
            update["merged"],
            float(rate),
            random.getstate(),
            id(self.model.current_optimizer),
        ]


def epoch_of(step: int) -> int:
    return 1 + step // 5


def batch(step: int) -> dict[str, Any]:
    source = np.random.default_rng(step)
    return {
        "x": tf.constant(source.normal(size=(8, 6)).astype("float32")),
        "t": tf.constant(source.normal(size=(8, 3)).astype("float32")),
    }


def seed_all(seed: int) -> None:
    keras.utils.set_random_seed(seed)
    # not another one, which graphs would not draw from
    tf.random.get_global_generator().reset_from_seed(seed)


def same(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "static"])
def test_as_if_it_had_not_stopped(tmp_path: Path, eager: bool) -> None:
    """Beside the run that went on; steps are merged and optimizers scheduled."""
    second = Run(1)
    second.go(0, 7, eager)  # its graphs stay
    first = Run(0)
    first.go(0, 7, eager)
    path = fastnet.save_checkpoint(tmp_path / "run.ckpt", first.network, step=7)
    losses = first.go(7, STEPS, eager)
    for run in (second, Run(2)):
        assert fastnet.load_checkpoint(path, run.network).step == 7
        assert run.go(7, STEPS, eager) == losses
        assert same(run.everything()[:-1], first.everything()[:-1])


def test_draws_of_python_after_a_save_are_those_after_a_load(tmp_path: Path) -> None:
    """Also of a thread in which Keras has not made its own generator, with a seed of Python's."""
    network = TFNetwork(LambdaOp(abs, "x", "y"))
    path = str(tmp_path / "run.ckpt")

    def save() -> float:
        random.seed(1)
        fastnet.save_checkpoint(path, network)
        return random.random()

    def load() -> float:
        fastnet.load_checkpoint(path, network)
        return random.random()

    found = []
    for run in (save, load):
        with ThreadPoolExecutor(1) as thread:
            found.append(thread.submit(run).result())
    assert found == [random.Random(1).random()] * 2


UNFIT = {
    "a weight": (
        "models",
        lambda part: part["net"]["weights"].popitem(),
        "it has 7 weights of model 'net', which has 8",
    ),
    "a shape": (
        "models",
        lambda part: part["net"]["weights"].update({"dense/bias": np.ones(9, "float32")}),
        "has ('dense/bias', (9,), 'float32'), where the model has ('dense/bias', (8,), 'float32')",
    ),
    "a learning rate": (
        "models",
        lambda part: part["net"]["optimizers"][0].update(learning_rate=None),
        "its learning_rate is None",
    ),
    "optimizer variables": (
        "models",
        lambda part: part["net"]["optimizers"][0]["variables"].popitem(),
        "it has arrays of the shapes",
    ),
    "random numbers": (
        "random",
        lambda part: part["framework"].update(tensorflow=np.zeros(2, "int64")),
        "its random numbers have a state of shape and dtype",
    ),
    "a variable": (
        "variables",
        lambda part: part.update({"ops/2.held": ["Variable", np.zeros(3, "float32")]}),
        "ops/2.held has the shape (3,) and dtype float32, where that of the program has (2,)",
    ),
    "merged gradients": (
        "states",
        lambda part: part["ops/3"]["state"].update(gradients=[None]),
        "has 1 gradients",
    ),
    "an op's own error": (
        "states",
        lambda part: part["ops/0"]["state"].update(factor=np.ones(3, "float32")),
        "does not fit the network",
    ),
    "a framework": (
        "framework",
        lambda part: None,
        "a PyTorch network saved it, and a TensorFlow network cannot load it",
    ),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_load_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    import fastnet.network.checkpoint as module

    changed, change, text = UNFIT[kind]
    other, run = Run(0), Run(1)
    other.go(0, 4)
    run.go(0, 2)
    encode = module.encode

    def spoil(value: Any, part: str, *rest: Any) -> Any:
        if part == changed:
            change(value)
            value = "torch" if part == "framework" else value
        return encode(value, part, *rest)

    monkeypatch.setattr(module, "encode", spoil)
    path = fastnet.save_checkpoint(tmp_path / "run.ckpt", other.network)
    before = run.everything()
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        fastnet.load_checkpoint(path, run.network)
    assert text in str(caught.value)
    assert same(run.everything(), before)
    run.go(2, 4)


def test_half_precision_and_super_loss(tmp_path: Path) -> None:
    def make(seed: int) -> Any:
        seed_all(seed)
        model = fastnet.build(model_fn, "adam", model_name="net", mixed_precision=True)
        losses = SuperLoss(PerSample(("y", "t"), "loss"))
        return fastnet.Network([ModelOp(model, "x", "y"), losses, UpdateOp(model, "loss")]), model

    class PerSample(LossOp):
        def forward(self, data: Any, state: Any) -> Any:
            return tf.reduce_mean((tf.cast(data[0], tf.float32) - data[1]) ** 2, axis=-1)

    def go(network: Any, first: int, last: int) -> list[float]:
        with network(mode="train", epoch=1):
            return [float(network.run_step(batch(step))["loss"]) for step in range(first, last)]

    network, model = make(0)
    go(network, 0, 3)
    path = fastnet.save_checkpoint(tmp_path / "run.ckpt", network)
    losses = go(network, 3, 6)
    other, twin = make(1)
    fastnet.load_checkpoint(path, other)
    assert go(other, 3, 6) == losses
    assert all(map(np.array_equal, model.get_weights(), twin.get_weights()))


def test_equal_layers_in_another_order(tmp_path: Path) -> None:
    """An error if the layers have names; automatic names differ in each build."""

    def make(*names: str | None) -> Any:
        dense = [layers.Dense(2, name=name) for name in names]
        model = keras.Sequential([layers.Input((2,)), *dense])
        model = fastnet.build(lambda: model, None, model_name="net")
        return fastnet.Network([ModelOp(model, "x", "y")]), model

    path = fastnet.save_checkpoint(tmp_path / "run.ckpt", make("p", "q")[0])
    network, model = make("q", "p")
    before = model.get_weights()
    with pytest.raises(ValueError, match=r"'p/kernel'.*where the model has \('q/kernel'"):
        fastnet.load_checkpoint(path, network)
    assert all(map(np.array_equal, model.get_weights(), before))
    (network, model), (other, twin) = make(None, None), make(None, None)
    fastnet.load_checkpoint(fastnet.save_checkpoint(path, network), other)
    assert all(map(np.array_equal, model.get_weights(), twin.get_weights()))


def test_a_model_without_variables(tmp_path: Path) -> None:
    model = fastnet.build(lambda: keras.Sequential([layers.Dense(3)]), "sgd", model_name="net")
    network = fastnet.Network([ModelOp(model, "x", "y")])
    with pytest.raises(ValueError, match="Model 'net' has no variables before it knows"):
        fastnet.save_checkpoint(tmp_path / "run.ckpt", network)


class Block(layers.Layer):
    """Has equal layers inside, of which the first can be frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first = layers.Dense(6)
        self.second = layers.Dense(6)
        self.norm = layers.BatchNormalization()

    def build(self, shape: Any) -> None:
        # In `call`, Keras 3 would make the weights of a frozen layer so that they stay frozen.
        for layer in (self.first, self.second, self.norm):
            with tf.name_scope(layer.name):
                layer.build(shape)
        self.built = True

    def call(self, x: Any, training: bool = False) -> Any:
        return self.norm(self.second(self.first(x)), training=training)


class Frozen:
    """A run whose first layer is frozen until the program unfreezes it."""

    def __init__(self, seed: int, optimizer: Any, frozen: bool = True) -> None:
        seed_all(seed)
        self.block = Block()
        self.block.first.trainable = not frozen
        model = lambda: keras.Sequential([layers.Input((6,)), self.block, layers.Dense(3)])  # noqa: E731
        self.model = fastnet.build(model, optimizer, model_name="net")
        self.update = UpdateOp(self.model, "loss", merge_grad=2)
        loss = Squares(("y", "t"), "loss")
        self.network = TFNetwork([ModelOp(self.model, "x", "y"), loss, self.update])

    def go(self, first: int, last: int, eager: bool) -> None:
        for step in range(first, last):
            with self.network("train", eager=eager):
                self.network.run_step(batch(step))

    def weights(self) -> list[Any]:
        inside = [self.block.first, self.block.second, self.block.norm, self.model.layers[-1]]
        return [weight for layer in inside for weight in layer.get_weights()]


def adagrad(kind: Any) -> Any:
    # Its state does not begin with zeros.
    return lambda: kind.Adagrad(0.1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eager", [True, False], ids=["eager", "static"])
def test_unfrozen_layers(tmp_path: Path, kind: Any, eager: bool) -> None:
    """Resumed in a run that is frozen, and in one in which both were trained for longer."""
    first = Frozen(0, adagrad(kind))
    first.go(0, 3, eager)
    early = fastnet.save_checkpoint(tmp_path / "early.ckpt", first.network)
    first.block.first.trainable = True
    first.go(3, 7, eager)
    path = fastnet.save_checkpoint(tmp_path / "run.ckpt", first.network)
    first.go(7, 10, eager)
    others = Frozen(1, adagrad(kind)), Frozen(2, adagrad(kind), frozen=False)
    others[1].go(0, 4, eager)
    for other in others:
        fastnet.load_checkpoint(path, other.network)
        assert other.block.first.trainable
        other.go(7, 10, eager)
        assert same(other.weights(), first.weights())
    fastnet.load_checkpoint(early, first.network)
    assert not first.block.first.trainable
    first.block.first.trainable = True
    first.go(3, 10, eager)
    assert same(first.weights(), others[0].weights())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eager", [True, False], ids=["eager", "static"])
def test_weights_of_frozen_layers_are_not_exchanged(tmp_path: Path, kind: Any, eager: bool) -> None:
    """Keras 2 lists those of frozen layers last, also when it makes the state of an optimizer."""
    saved, other = Frozen(0, adagrad(kind), frozen=True), Frozen(1, adagrad(kind), frozen=False)
    for run in (saved, other):
        run.go(0, 4, eager)
    fastnet.load_checkpoint(
        fastnet.save_checkpoint(tmp_path / "run.ckpt", saved.network), other.network
    )
    assert same(other.weights(), saved.weights())
    assert not other.block.first.trainable
    for run in (saved, other):
        run.go(4, 8, eager)
    assert same(other.weights(), saved.weights())


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 freezes layers only")
def test_frozen_variables(tmp_path: Path) -> None:
    saved, other = Frozen(0, "adam", frozen=False), Frozen(1, "adam", frozen=False)
    saved.block.second.kernel.trainable = False
    fastnet.load_checkpoint(
        fastnet.save_checkpoint(tmp_path / "run.ckpt", saved.network), other.network
    )
    assert not other.block.second.kernel.trainable
    assert len(other.model.trainable_variables) == len(saved.model.trainable_variables)


def test_merged_gradients_of_other_layers() -> None:
    saved, other = Frozen(0, "sgd"), Frozen(1, "sgd")
    saved.go(0, 1, eager=True)
    other.block.first.trainable, other.block.second.trainable = True, False
    before = other.update.state_dict()
    with pytest.raises(ValueError, match=r"gradient of 'block/dense#1/kernel', .* 'block/dense/"):
        other.update.load_state_dict(saved.update.state_dict())
    assert other.update.state_dict() == before


def small_seed() -> int:
    return int(np.random.randint(99))


def stateful_rnn() -> Any:
    rnn = layers.LSTM(
        2,
        stateful=True,
        return_sequences=True,
        kernel_initializer="ones",
        recurrent_initializer="ones",
    )
    rnn(tf.zeros((8, 4, 2)))
    return rnn


def normalization() -> Any:
    layer = layers.BatchNormalization()
    layer.build((None, 4, 2))
    return layer


# Objects with a state, and functions that change and use it.
STATEFUL: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any]]] = {
    "a variable": (lambda: tf.Variable(1.0), lambda steps, x: x * steps.assign_add(0.1)),
    "a generator": (
        lambda: tf.random.Generator.from_seed(small_seed()),
        lambda generator, x: x + generator.uniform(()),
    ),
    "a metric": (keras.metrics.Mean, lambda mean, x: (mean.update_state(x), x + mean.result())[1]),
    "a stateful layer": (stateful_rnn, lambda rnn, x: rnn(x)),
    "statistics": (normalization, lambda norm, x: norm(x, training=True) + norm(x)),
}
if KERAS_3:
    STATEFUL["a seed generator"] = (
        lambda: keras.random.SeedGenerator(small_seed()),
        lambda seeds, x: x + keras.random.uniform((), seed=seeds),
    )
    STATEFUL["a random layer"] = (
        lambda: layers.Dropout(0.5, seed=small_seed()),
        lambda dropout, x: dropout(x, training=True),
    )


class HoldingLayer(layers.Layer):
    def __init__(self, kind: str) -> None:
        super().__init__()
        make, self.use = STATEFUL[kind]
        self.held = make()

    def call(self, x: Any) -> Any:
        return self.use(self.held, x)


class HoldingOp(TensorOp):
    def __init__(self, kind: str) -> None:
        super().__init__(inputs="x", outputs="x")
        make, self.use = STATEFUL[kind]
        self.held = {"some": [make()]}

    def forward(self, data: Any, state: Any) -> Any:
        return self.use(self.held["some"][0], data)


def holding_function(kind: str) -> Callable[[Any], Any]:
    make, use = STATEFUL[kind]
    held = make()
    return lambda x: use(held, x)


@pytest.mark.filterwarnings("ignore:.* has trainable parameters that no optimizer updates")
@pytest.mark.parametrize("place", ["layer", "op", "function"])
@pytest.mark.parametrize("kind", STATEFUL)
def test_state_beside_weights(tmp_path: Path, kind: str, place: str) -> None:
    def make(seed: int) -> tuple[TFNetwork, Any]:
        seed_all(seed)
        inside = [HoldingLayer(kind)] if place == "layer" else []
        every = [*inside, layers.Flatten(), layers.Dense(3)]
        # The layers are called here, so that each is built.
        source = layers.Input((4, 2), batch_size=8)
        y = source
        for layer in every:
            y = layer(y)
        model = fastnet.build(lambda: keras.Model(source, y), "adam", model_name="net")
        first: Any = {
            "op": lambda: HoldingOp(kind),
            "function": lambda: LambdaOp(holding_function(kind), "x", "x"),
            "layer": lambda: LambdaOp(lambda x: x, "x", "x"),
        }[place]()
        loss = Squares(("y", "t"), "loss")
        return TFNetwork([first, ModelOp(model, "x", "y"), loss, UpdateOp(model, "loss")]), model

    def run(network: TFNetwork, first: int, last: int) -> list[float]:
        losses = []
        for step in range(first, last):
            data = batch(step)
            data["x"] = tf.reshape(tf.concat([data["x"], data["x"][:, :2]], 1), (8, 4, 2))
            with network("train"):
                losses.append(float(network.run_step(data)["loss"]))
        return losses

    network, model = make(0)
    run(network, 0, 3)
    path = fastnet.save_checkpoint(tmp_path / "run.ckpt", network)
    expected = run(network, 3, 6)
    resumed, other = make(1)
    fastnet.load_checkpoint(path, resumed)
    assert run(resumed, 3, 6) == expected
    assert same_weights(other, model)


def test_paths_of_state_are_those_of_layers() -> None:
    """Keras 3 has the layers of a Sequential in a functional model, too, once it is built."""
    from fastnet.network.held_state import find_held

    make = lambda: keras.Sequential([layers.Input((2,)), HoldingLayer("a generator")])  # noqa: E731
    model = fastnet.build(make, None, model_name="net")
    assert "models/net/holding_layer.held" in find_held(TFNetwork([ModelOp(model, "x", "y")]))


def test_variables_that_only_one_side_has(tmp_path: Path) -> None:
    network, other = (TFNetwork(LambdaOp(abs, "x", "y")) for _ in range(2))
    network.ops[0].held = tf.Variable(1.0)
    for saved, loaded, owner in ((network, other, "file"), (other, network, "program")):
        path = fastnet.save_checkpoint(tmp_path / "run.ckpt", saved)
        told = rf"\['ops/0.held'\] is not restored, because only the {owner} has it"
        with pytest.warns(UserWarning, match=told):
            fastnet.load_checkpoint(path, loaded)


@pytest.mark.skipif(KERAS_3, reason="Keras 3's generators are variables")
def test_random_numbers_that_cannot_be_read(tmp_path: Path) -> None:
    model = fastnet.build(lambda: keras.Sequential([layers.Input((6,)), layers.Dropout(0.5)]), None)
    network = fastnet.Network([ModelOp(model, "x", "y")])
    told = "The state of the random numbers of layer 'dropout.*' cannot be read"
    with pytest.warns(UserWarning, match=told) as caught:
        fastnet.save_checkpoint(tmp_path / "run.ckpt", network)
    assert {one.filename for one in caught} == {__file__}
    held = LambdaOp(layers.GaussianNoise(0.5), "x", "y")
    with pytest.warns(UserWarning, match=r"layer 'gaussian_noise.*' cannot be read"):
        fastnet.save_checkpoint(tmp_path / "run.ckpt", TFNetwork(held))


@pytest.mark.skipif(KERAS_3, reason="Keras 3's Nadam has no such counter")
def test_an_optimizer_with_state_that_cannot_be_read(tmp_path: Path) -> None:
    dense = lambda: keras.Sequential([layers.Input((6,)), layers.Dense(3)])  # noqa: E731
    model = fastnet.build(dense, keras.optimizers.Nadam)
    network = TFNetwork([ModelOp(model, "x", "y"), UpdateOp(model, "y")])
    with pytest.warns(UserWarning, match="The optimizer Nadam of Keras 2 keeps state"):
        fastnet.save_checkpoint(tmp_path / "run.ckpt", network)
