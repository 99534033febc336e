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
from fastnet.op.tensorop import TensorOp
from fastnet.op.tensorop.model import ModelOp
from tests.network.keras_models import (
    BY_NAME,
    KERAS_3,
    batches,
    keras,
    layers,
    mlp,
    same_weights,
    supervised,
    train,
)

pytestmark = [
    pytest.mark.tf,
    pytest.mark.skipif(not KERAS_3, reason="copying optimizers needs Keras 3"),
]


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


ways = pytest.mark.parametrize("way", [copy.deepcopy, pickled], ids=["copied", "pickled"])
Way = Callable[[Any], Any]


class TestACopy:
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
