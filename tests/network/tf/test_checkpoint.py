"""Checkpoints of TensorFlow runs: exact resume, and failed loads that change nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.op.tensorop import TensorOp
from fastnet.op.tensorop.loss import LossOp, SuperLoss
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from tests.network.keras_models import BY_NAME, KERAS_3, keras, layers, variables_of

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
        self.network = fastnet.Network(
            [self.rising, ModelOp(self.model, "x", "y"), Squares(("y", "t"), "loss"), self.update]
        )

    def go(self, first: int, last: int, eager: bool = True) -> list[float]:
        losses = []
        for step in range(first, last):
            with self.network(mode="train", epoch=epoch_of(step), eager=eager):
                losses.append(float(self.network.run_step(batch(step))["loss"]))
        return losses

    def everything(self) -> Any:
        """Copy the state without using fastnet."""
        optimizers = self.model.optimizer.get_all_values()
        kept = [
            *self.model.variables,
            *[one for each in optimizers for one in variables_of(each)],
            self.rising.factor,
            tf.random.get_global_generator().state,
            *[one.total for one in self.update._update._sums.values()],
        ]
        rate = optimizers[0].learning_rate
        return [
            *[np.array(one.numpy()) for one in kept],
            int(self.update._update._merged.numpy()),
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


def hand_written_loop(seed: int) -> tuple[list[float], list[Any]]:
    """The same run as an uninterrupted hand-written loop."""
    seed_all(seed)
    model = model_fn()
    optimizers = [adam(), momentum()]
    factor, sums = tf.Variable(1.0), [tf.zeros_like(one) for one in model.trainable_variables]
    losses = []
    for step in range(STEPS):
        data = batch(step)
        factor.assign(factor * 1.01)
        x = data["x"] * factor + tf.random.get_global_generator().uniform(())
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - data["t"]) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        sums = [one + two for one, two in zip(sums, gradients, strict=True)]
        if step % MERGED == MERGED - 1:
            averages = [one / MERGED for one in sums]
            optimizers[epoch_of(step) - 1].apply_gradients(
                zip(averages, model.trainable_variables, strict=True)
            )
            sums = [tf.zeros_like(one) for one in sums]
        losses.append(float(loss))
    return losses, model.get_weights()


def same(one: Any, other: Any) -> bool:
    return (
        len(one) == len(other)
        and all(map(np.array_equal, one[:-2], other[:-2]))
        and (one[-2:] == other[-2:])
    )


@pytest.mark.parametrize("before", [2, 6])
def test_as_if_it_had_not_stopped(tmp_path: Path, before: int) -> None:
    losses, weights = hand_written_loop(0)
    first = Run(0)
    early = first.go(0, before)
    path = fastnet.save_checkpoint(tmp_path / "run.ckpt", first.network, step=before)
    second = Run(1)
    assert fastnet.load_checkpoint(path, second.network).step == before
    assert early + second.go(before, STEPS) == losses
    assert all(map(np.array_equal, second.model.get_weights(), weights))


def test_in_graphs_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    """Beside the run that went on; also into graphs that were traced before."""
    second = Run(1)
    second.go(0, 7, eager=False)
    first = Run(0)
    first.go(0, 7, eager=False)
    path = fastnet.save_checkpoint(tmp_path / "run.ckpt", first.network)
    losses = first.go(7, STEPS, eager=False)
    fresh = Run(2)
    for run in (second, fresh):
        fastnet.load_checkpoint(path, run.network)
        assert run.go(7, STEPS, eager=False) == losses
        assert all(map(np.array_equal, run.model.get_weights(), first.model.get_weights()))


def test_each_scheduled_optimizer_has_its_own(tmp_path: Path) -> None:
    run = Run(0)
    run.go(0, STEPS)
    path = fastnet.save_checkpoint(tmp_path / "run.ckpt", run.network)
    for epoch in (1, 2):
        other = Run(1)
        fastnet.load_checkpoint(path, other.network)
        with other.network(mode="train", epoch=epoch, eager=True):
            pass
        for one, two in zip(
            run.model.optimizer.get_all_values(),
            other.model.optimizer.get_all_values(),
            strict=True,
        ):
            pairs = zip(variables_of(one), variables_of(two), strict=True)
            assert all(np.array_equal(*(each.numpy() for each in pair)) for pair in pairs)


UNFIT = {
    "a weight": (
        "models",
        lambda part: part["net"]["weights"].pop(),
        "it has 7 weights of model 'net', which has 8",
    ),
    "a shape": (
        "models",
        lambda part: part["net"]["weights"][1].__setitem__(1, np.ones(9, "float32")),
        "has ('bias', (9,), 'float32'), where the model has ('bias', (8,), 'float32')",
    ),
    "a learning rate": (
        "models",
        lambda part: part["net"]["optimizers"][0].update(learning_rate=None),
        "its learning_rate is None",
    ),
    "optimizer variables": (
        "models",
        lambda part: part["net"]["optimizers"][0]["values"].pop(),
        "it has arrays of the shapes",
    ),
    "random numbers": (
        "random",
        lambda part: part["framework"].__setitem__(0, np.zeros(2, "int64")),
        "its random numbers have states",
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
    "a framework": ("framework", lambda part: None, "is of version 1 for 'torch'"),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_load_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    import fastnet.network.checkpoint as module

    changed, change, text = UNFIT[kind]
    other, run = Run(0), Run(1)
    other.go(0, 8)
    run.go(0, 4)
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
    run.go(4, 6)


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


def test_a_model_without_variables(tmp_path: Path) -> None:
    model = fastnet.build(lambda: keras.Sequential([layers.Dense(3)]), "sgd", model_name="net")
    network = fastnet.Network([ModelOp(model, "x", "y")])
    with pytest.raises(ValueError, match="The model 'net' creates its variables in its first"):
        fastnet.save_checkpoint(tmp_path / "run.ckpt", network)


@pytest.mark.skipif(KERAS_3, reason="Keras 3's generators are variables")
def test_random_numbers_that_cannot_be_read(tmp_path: Path) -> None:
    model = fastnet.build(lambda: keras.Sequential([layers.Input((6,)), layers.Dropout(0.5)]), None)
    network = fastnet.Network([ModelOp(model, "x", "y")])
    told = "The state of the random numbers of layer 'dropout.*' cannot be read"
    with pytest.warns(UserWarning, match=told) as caught:
        fastnet.save_checkpoint(tmp_path / "run.ckpt", network)
    assert {one.filename for one in caught} == {__file__}
