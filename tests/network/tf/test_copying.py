"""Networks of Keras models as values: copied and pickled, as far as Keras lets its models be."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
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
    loop,
    mlp,
    same_weights,
    supervised,
    train,
    twins,
)

pytestmark = [
    pytest.mark.tf,
    pytest.mark.skipif(not KERAS_3, reason="copying optimizers needs Keras 3"),
]


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


ways = pytest.mark.parametrize("way", [copy.deepcopy, pickled], ids=["copied", "pickled"])
Way = Callable[[Any], Any]


def optimizers() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for kind in KINDS:
        made[f"momentum {kind.__name__}"] = lambda kind=kind: kind.SGD(0.1, momentum=0.9)
        made[f"adam {kind.__name__}"] = lambda kind=kind: kind.Adam(0.01)
    made["decay"] = lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1)
    made["schedule"] = lambda: BY_NAME.SGD(
        keras.optimizers.schedules.PiecewiseConstantDecay([2, 4], [1.0, 0.1, 0.01])
    )
    made["epochs"] = EpochScheduler({1: "adam", 2: lambda: BY_NAME.SGD(0.1, momentum=0.9)})
    return made


class TestACopy:
    @ways
    def test_goes_on_as_a_loop_by_hand(self, way: Way) -> None:
        model, twin = twins(mlp)
        fastnet.build(model, lambda: BY_NAME.Adam(0.01))
        network, data = TFNetwork(supervised(model)), batches(4)
        train(network, data[:2])
        other = way(network)
        train(other, data[2:])
        loop(twin, BY_NAME.Adam(0.01), data, classify)
        assert_close(other.models[0], twin)

    @ways
    @pytest.mark.parametrize("eager", [False, True], ids=["static", "eager"])
    def test_goes_on_in_the_middle_of_a_window(self, way: Way, eager: bool) -> None:
        model = fastnet.build(mlp, lambda: BY_NAME.SGD(0.1))
        network, data = TFNetwork(supervised(model, merge_grad=3)), batches(6)
        train(network, data[:4], eager)
        other = way(network)
        assert other.ops[2].state_dict()["merged"] == 1
        for each in (other, network):
            train(each, data[4:], eager)
        assert same_weights(other.models[0], model)

    @ways
    def test_of_frozen_layers(self, way: Way) -> None:
        model = fastnet.build(mlp, lambda: BY_NAME.Adam(0.01))
        network, data = TFNetwork(supervised(model)), batches(4)
        train(network, data[:1])
        model.layers[0].trainable = False
        train(network, data[1:2])
        other = way(network)
        assert [one.trainable for one in other.models[0].layers] == [False, True]
        for each in (network, other):
            train(each, data[2:3])
            each.models[0].layers[0].trainable = True
            train(each, data[3:])
        assert same_weights(other.models[0], model)

    @ways
    def test_of_intermediate_layers(self, way: Way) -> None:
        model = fastnet.build(mlp, None)
        name = model.layers[0].name
        network = TFNetwork([ModelOp(model, "x", ["y", "h"], intermediate_layers=name)])
        (batch,) = batches(1)
        (wanted,) = train(network, [batch], mode="infer")
        other = way(network)
        (found,) = train(other, [batch], mode="infer")
        np.testing.assert_array_equal(found["h"], wanted["h"])
        other.models[0].layers[0].bias.assign_add(tf.ones(5))
        (moved,) = train(other, [batch], mode="infer")
        assert not np.array_equal(moved["h"], wanted["h"])

    @ways
    def test_has_no_graphs_yet(self, way: Way) -> None:
        network = TFNetwork([LambdaOp(tf.abs, "x", "y")])
        train(network, batches(1), mode="infer")
        other = way(network)
        assert other.traces == ()
        train(other, batches(1), mode="infer")
        assert len(other.traces) == len(network.traces) == 1

    @ways
    def test_of_one_op(self, way: Way) -> None:
        model = fastnet.build(mlp, "adam", model_name="m")
        update, pass_ = way((UpdateOp(model, "loss"), ModelOp(model, "x", "y")))
        assert update.model is pass_.model
        assert update.model.model_name == "m"
        assert isinstance(update.model.current_optimizer, BY_NAME.Adam)
        assert update.model is not model


class Scaling(TensorOp):
    """An op of a user's own that holds something of a model."""

    def __init__(self, held: Any) -> None:
        super().__init__("y", "z")
        self.held = held

    def forward(self, data: Any, state: Any) -> Any:
        return data * tf.reduce_sum(tf.convert_to_tensor(self.held.bias))


class TestPartsOfModels:
    def test_a_copy_has_those_of_its_own_models(self) -> None:
        model = fastnet.build(mlp, None)
        network = TFNetwork([ModelOp(model, "x", "y"), Scaling(model.layers[1])])
        other = copy.deepcopy(network)
        assert other.ops[1].held is other.models[0].layers[1]

    def test_pickle_would_tear_them_apart(self) -> None:
        model = fastnet.build(mlp, None, model_name="m")
        layer = model.layers[1]
        network = TFNetwork([ModelOp(model, "x", "y"), Scaling(layer)])
        with pytest.raises(
            ValueError, match=f"Scaling holds '{layer.name}', a part of the model 'm'"
        ):
            pickle.dumps(network)


class Unsaved(keras.Model):  # type: ignore[misc]
    """A model that Keras cannot save."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = layers.Dense(width)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def get_config(self) -> Any:
        raise NotImplementedError("no config")


class TestWhatKerasCannotSave:
    @ways
    def test_is_named(self, way: Way) -> None:
        model = Unsaved(3)
        model(np.zeros((1, 6), "float32"))
        fastnet.build(model, None, model_name="m")
        network = TFNetwork([ModelOp(model, "x", "y")])
        with pytest.raises(
            TypeError, match=r"^The Keras model 'm' \(Unsaved\) cannot be copied or"
        ):
            way(network)
        # and the network is as it was
        train(network, batches(1), mode="infer")

    @ways
    def test_an_open_network(self, way: Way) -> None:
        network = TFNetwork([ModelOp(fastnet.build(mlp, None, model_name="m"), "x", "y")])
        with (
            network("infer", 1),
            pytest.raises(ValueError, match="TFNetwork is open"),
        ):
            way(network)
        way(network)


def test_a_model_by_itself_keeps_what_is_known_of_it() -> None:
    model = fastnet.build(mlp, "adam", model_name="m")
    for other in (copy.deepcopy(model), pickled(model)):
        assert other.model_name == "m"
        assert other.current_optimizer is other.optimizer
        assert other.optimizer is not model.optimizer


def test_a_model_that_was_not_built_is_pickled_as_keras_does() -> None:
    fastnet.build(mlp, "adam")
    plain = mlp()
    other = pickled(plain)
    assert same_weights(plain, other)
    assert not hasattr(other, "fe_compiled")
