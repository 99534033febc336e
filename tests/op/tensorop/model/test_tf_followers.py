"""Updates of Keras models that clip, tell, flush and are averaged, beside loops by hand."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import EMA, LRSchedule, ModelOp, UpdateOp
from tests.network.keras_models import BY_NAME, KERAS_3, batches, keras, layers, mlp

pytestmark = pytest.mark.tf

TOLD: Any = {"stepped": "stepped", "grad_norm": "norm"}
EITHER_WAY = pytest.mark.parametrize("eager", [False, True], ids=["static", "eager"])


def built(make: Any = mlp, seed: int = 0, **settings: Any) -> Any:
    tf.random.set_seed(seed)
    return fastnet.build(make, lambda: BY_NAME.SGD(0.1), **settings)


def twins(make: Any = mlp, **settings: Any) -> tuple[Any, Any]:
    model, twin = built(make, **settings), built(make, **settings)
    twin.set_weights(model.get_weights())
    return model, twin


def ops_of(model: Any, ema: EMA | None = None, **update: Any) -> list[Any]:
    return [
        ModelOp(model, "x", "y", mode="train"),
        ModelOp(model if ema is None else ema.averaged, "x", "y", mode="!train"),
        CrossEntropy(("y", "t"), "loss", from_logits=True),
        UpdateOp(model, "loss", **update),
        ema,
    ]


def run_all(network: Any, data: Any, mode: Any = "train", **opening: Any) -> list[Any]:
    with network(mode=mode, epoch=opening.pop("epoch", 1), **opening):
        return [network.run_step(batch) for batch in data]


class ByHand:
    """A loop by hand over windows of batches, which clips, and averages weights by 0.9."""

    def __init__(self, twin: Any, norm: float | None = None, value: float | None = None) -> None:
        self.twin = twin
        self.norm, self.value = norm, value
        self.mean: Any = None
        self.norms: list[float] = []
        self.stepped: list[bool] = []

    def gradients(self, batch: Any) -> Any:
        optimizer, twin = self.twin.optimizer, self.twin
        with tf.GradientTape() as tape:
            scores = tf.cast(twin(batch["x"], training=True), "float32")
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["t"], scores)
            loss = tf.reduce_mean(each)
            scale = getattr(optimizer, "get_scaled_loss", getattr(optimizer, "scale_loss", None))
            loss = loss if scale is None else scale(loss)
        found = tape.gradient(loss, twin.trainable_variables)
        if hasattr(optimizer, "get_unscaled_gradients"):
            return optimizer.get_unscaled_gradients(found)
        return found if scale is None else [one / optimizer.scale_loss(1.0) for one in found]

    def window(self, window: list[Any]) -> None:
        each = [self.gradients(batch) for batch in window]
        means = [sum(one) / len(window) for one in zip(*each, strict=True)]
        total = tf.linalg.global_norm(means)
        finite = bool(tf.math.is_finite(total))
        if self.norm is not None:
            means, _ = tf.clip_by_global_norm(means, self.norm, use_norm=total)
        if self.value is not None:
            means = [tf.clip_by_value(one, -self.value, self.value) for one in means]
        optimizer, variables = self.twin.optimizer, self.twin.trainable_variables
        scale = 1.0
        if hasattr(optimizer, "scale_loss"):
            scale = optimizer.scale_loss(1.0)
        means = [one * (scale if finite else float("nan")) for one in means]
        optimizer.apply_gradients(zip(means, variables, strict=True))
        self.norms.append(float(total))
        self.stepped.append(finite)
        if finite:
            now = [one.numpy() for one in variables]
            self.mean = (
                now
                if self.mean is None
                else [0.9 * one + 0.1 * other for one, other in zip(self.mean, now, strict=True)]
            )


def assert_same(model: Any, twin: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    for own, other in zip(model.weights, twin.weights, strict=True):
        np.testing.assert_allclose(own.numpy(), other.numpy(), rtol=rtol, atol=atol)


@EITHER_WAY
@pytest.mark.parametrize(("norm", "value"), [(0.1, None), (None, 0.001), (None, None)])
def test_a_step_that_overflows_is_none(
    norm: float | None, value: float | None, eager: bool
) -> None:
    model, twin = twins(mixed_precision=True)
    ema = EMA(model, decay=0.9)
    network = TFNetwork(ops_of(model, ema, clip_norm=norm, clip_value=value, outputs=TOLD))
    data = batches(5)
    data[2]["x"] = data[2]["x"] * 6e4
    results = run_all(network, data, eager=eager)
    by_hand = ByHand(twin, norm, value)
    for batch in data:
        by_hand.window([batch])
    stepped = [bool(one["stepped"]) for one in results]
    assert stepped == by_hand.stepped == [True, True, False, True, True]
    norms = [float(one["norm"]) for one, did in zip(results, stepped, strict=True) if did]
    expected = [one for one, did in zip(by_hand.norms, stepped, strict=True) if did]
    np.testing.assert_allclose(norms, expected, rtol=1e-2)
    # some processors add up in float16, and a graph then rounds at other places
    assert_same(model, twin, rtol=1e-2, atol=1e-4)
    for own, other in zip(ema.averaged.trainable_variables, by_hand.mean, strict=True):
        np.testing.assert_allclose(own.numpy(), other, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("way", ["checkpoint", *(["copy", "pickle"] if KERAS_3 else [])])
def test_training_goes_on_to_the_bit(way: str, tmp_path: Path) -> None:
    def make() -> TFNetwork:
        model = built(model_name="m")
        return TFNetwork(ops_of(model, EMA(model, decay=0.9), clip_norm=0.1, merge_grad=2))

    network = make()
    run_all(network, batches(5))
    if way == "checkpoint":
        path = fastnet.save_checkpoint(tmp_path / "run.ckpt", network, epoch=1)
        other = make()
        fastnet.load_checkpoint(path, other)
    else:
        other = copy.deepcopy(network) if way == "copy" else pickle.loads(pickle.dumps(network))
    for each in (network, other):
        run_all(each, batches(5, seed=1), epoch=2)
    own, copies = (sorted(each.models, key=lambda one: one.model_name) for each in (network, other))
    assert [one.model_name for one in copies] == ["m", "m_ema"]
    for one, twin in zip(own, copies, strict=True):
        for mine, theirs in zip(one.get_weights(), twin.get_weights(), strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.skipif(not KERAS_3, reason="Keras 2's begins with the weights before the first step")
def test_an_average_is_what_keras_has() -> None:
    model, twin = twins()
    ema = EMA(model, decay=0.9)
    run_all(TFNetwork(ops_of(model, ema)), batches(4))
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9)
    twin.optimizer = optimizer
    by_hand = ByHand(twin)
    for batch in batches(4):
        by_hand.window([batch])
    optimizer.finalize_variable_values(twin.trainable_variables)
    assert_same(ema.averaged, twin)


def test_weights_that_are_not_trained_are_copied_or_averaged() -> None:
    def make() -> Any:
        return keras.Sequential([layers.Input((6,)), layers.BatchNormalization(), layers.Dense(3)])

    for use_buffers in (False, True):
        model = built(make)
        ema = EMA(model, decay=0.5, use_buffers=use_buffers)
        network = TFNetwork(ops_of(model, ema))
        run_all(network, batches(1))
        before = [one.numpy() for one in model.non_trainable_weights]
        run_all(network, batches(1, seed=1))
        after = [one.numpy() for one in model.non_trainable_weights]
        means = [one.numpy() for one in ema.averaged.weights if "moving" in one.name]
        for mean, one, other in zip(means, before, after, strict=True):
            expected = (one + other) / 2 if use_buffers else other
            np.testing.assert_allclose(mean, expected, rtol=1e-5)


class Pair(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, left: Any, right: Any, training: bool = False) -> dict[str, Any]:
        return {"logits": self.dense(left - right), "other": left}


class Named(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, inputs: Any, training: bool = False) -> dict[str, Any]:
        return {"logits": self.dense(inputs["left"] - inputs["right"]), "other": inputs["left"]}


def functional() -> Any:
    right, left = layers.Input((2,), name="right"), layers.Input((2,), name="left")
    return keras.Model([right, left], layers.Dense(3)(left - right))


@EITHER_WAY
@pytest.mark.parametrize("make", [Pair, Named, functional])
def test_names_of_inputs(make: Any, eager: bool) -> None:
    model = built(make)
    left, right = np.ones((4, 2), "float32"), np.full((4, 2), 3, "float32")
    outputs: Any = "y" if make is functional else {"logits": "y"}
    network = TFNetwork([ModelOp(model, {"left": "a", "right": "b"}, outputs)])
    (result,) = run_all(network, [{"a": left, "b": right}], mode="infer", eager=eager)
    dense = model.layers[-1]
    kernel, bias = dense.get_weights()
    np.testing.assert_allclose(result["y"], (left - right) @ kernel + bias, rtol=1e-5)


@EITHER_WAY
def test_an_op_that_cannot_read_what_has_parts(eager: bool) -> None:
    model = built(Named, model_name="m")
    network = TFNetwork(
        [
            ModelOp(model, {"left": "a", "right": "b"}, "y"),
            LambdaOp(lambda y: y.no_such_thing, "y", "z"),
        ]
    )
    ones = np.ones((4, 2), "float32")
    with pytest.raises(AttributeError) as caught:
        run_all(network, [{"a": ones, "b": ones}], mode="infer", eager=eager)
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert (
        "The value of 'y' is of type dict, as model 'm' returned it, with the parts ['logits', "
        "'other']. ModelOp(..., outputs={'logits': 'y'}) selects one of them."
    ) in told


def test_names_that_there_are_not() -> None:
    model = built(functional, model_name="m")
    with pytest.raises(ValueError, match=r"ModelOp.*'m'.*'left'.*'rigth'.*'right'"):
        ModelOp(model, {"left": "a", "rigth": "b"}, "y")
    model = built(Pair, model_name="m")
    with pytest.raises(ValueError, match=r"ModelOp.*'m'.*'rigth'.*'right'.*'left'.*'training'"):
        ModelOp(model, {"left": "a", "rigth": "b"}, "y")


def test_what_is_for_torch_is_refused() -> None:
    model = built(model_name="m")
    with pytest.raises(ValueError, match=r"ModelOp.*'m'.*`trainable = False`.*trainable=False"):
        ModelOp(model, "x", "y", eval_layers="dense")
    with pytest.raises(ValueError, match=r"LRSchedule.*'m'.*'tf'.*learning_rate"):
        LRSchedule(model, lambda optimizer: optimizer)
    network = TFNetwork([LambdaOp(lambda x: x, "x", "y")])
    with pytest.raises(TypeError, match="transform got device='cuda', which is for torch"):
        network.transform({"x": np.ones(1)}, "infer", device="cuda")


def test_a_model_without_weights_has_no_average() -> None:
    model = built(Pair, model_name="m")
    with pytest.raises(ValueError, match=r"EMA.*'m'.*build\(shape\)"):
        EMA(model)
