"""Keras models that use fastnet's names themselves, and models that were made before `build`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.backend import get_lr, load_model, save_model
from fastnet.network import TFNetwork
from tests.network.keras_models import (
    BY_NAME,
    assert_close,
    batches,
    classify,
    keras,
    layers,
    line,
    loop,
    mlp,
    supervised,
    train,
    twins,
    weights,
)
from tests.network.programs import raising

pytestmark = pytest.mark.tf


class Learner(keras.Model):  # type: ignore[misc]
    """A layer, a number, a string and a property under fastnet's names."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = layers.Dense(5, activation="tanh")
        self.current_optimizer = layers.Dense(3)
        self.model_name = 1.0
        self.loss_name = "cross entropy"

    @property
    def mixed_precision(self) -> str:
        return "never"

    def call(self, x: Any) -> Any:
        return self.current_optimizer(self.optimizer(x)) * self.model_name


def learner() -> Any:
    model = Learner()
    model(np.zeros((1, 6), "float32"))
    return model


class TestAModelThatUsesThem:
    def test_keeps_them_and_is_trained_as_by_hand(self) -> None:
        model, twin = twins(learner)
        inner = model.optimizer, model.current_optimizer
        fastnet.build(lambda: model, lambda: BY_NAME.SGD(0.1), model_name="m")
        assert get_lr(model) == pytest.approx(0.1)
        data = batches(3)
        network = TFNetwork(supervised(model))
        assert "model 'm' with SGD" in str(network.explain())
        train(network, data)
        loop(twin, BY_NAME.SGD(0.1), data, classify)
        assert_close(model, twin)
        assert (model.optimizer, model.current_optimizer) == inner
        assert model.loss_name == "cross entropy"
        assert model.mixed_precision == "never"
        assert model.model_name == 1.0

    def test_a_change_of_one_counts(self) -> None:
        """What fastnet writes there on other models is none of a graph's business."""
        model = fastnet.build(learner, None)
        network = TFNetwork(supervised(model)[:1])
        data = batches(1)
        (once,) = train(network, data)
        model.model_name = 2.0
        (twice,) = train(network, data)
        np.testing.assert_array_equal(twice["y"].numpy(), 2 * once["y"].numpy())

    def test_its_layers_are_saved(self, tmp_path: Path) -> None:
        model = fastnet.build(learner, "adam", model_name="m")
        before = weights(model)
        path = save_model(model, str(tmp_path), save_optimizer=True)
        for variable in model.weights:
            variable.assign(tf.zeros_like(variable))
        load_model(model, path, load_optimizer=True)
        for one, other in zip(weights(model), before, strict=True):
            np.testing.assert_array_equal(one, other)


class TestCompiledByKeras:
    """Keras has the model's optimizer where fastnet has it: it is one optimizer or the other."""

    def test_a_new_optimizer_takes_the_place_of_keras_own(self) -> None:
        model = mlp()
        model.compile("sgd", "mse")
        fastnet.build(lambda: model, "adam")
        assert isinstance(model.optimizer, BY_NAME.Adam)
        assert model.current_optimizer is model.optimizer
        model.optimizer = BY_NAME.SGD(0.5)
        train(TFNetwork(supervised(model)), batches(1))
        assert get_lr(model) == 0.5

    def test_none_leaves_keras_its_own(self) -> None:
        model = mlp()
        model.compile(BY_NAME.SGD(0.5), "mse")
        own = model.optimizer
        fastnet.build(lambda: model, None)
        assert model.optimizer is own
        with raising(
            ValueError,
            f"get_lr is about an optimizer's learning rate, but model '{model.model_name}' has no "
            "optimizer now. Give fastnet.build an optimizer_fn.",
        ):
            get_lr(model)
        before = weights(model)
        model.fit(np.ones((2, 6)), np.ones((2, 3)), verbose=0)
        assert not all(map(np.array_equal, before, weights(model)))


class TestModelsMadeBefore:
    def test_one(self) -> None:
        model, twin = twins(mlp)
        assert fastnet.build(model, lambda: BY_NAME.SGD(0.1), model_name="m") is model
        data = batches(2)
        train(TFNetwork(supervised(model)), data)
        loop(twin, BY_NAME.SGD(0.1), data, classify)
        assert_close(model, twin)

    def test_several(self) -> None:
        made = [line(), mlp()]
        models = fastnet.build(made, ["sgd", None], model_name=["a", "b"])
        assert [id(one) for one in models] == [id(one) for one in made]
        assert [one.model_name for one in models] == ["a", "b"]

    def test_in_another_precision(self) -> None:
        with pytest.raises(ValueError, match=r"float32.*mixed_precision=True.*model_fn"):
            fastnet.build(line(), "sgd", mixed_precision=True)

    def test_in_the_precision_asked_for(self) -> None:
        made = fastnet.build(line, "sgd", mixed_precision=True)
        again = fastnet.build(made, "sgd", mixed_precision=True)
        assert again.mixed_precision

    def test_beside_several_gpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = line()
        monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: ["one", "two"])
        with raising(
            ValueError,
            f"{type(model).__name__} was made for one device, but there are 2 GPUs to spread it "
            "over. Pass a function that makes the model as model_fn, or make it within the scope "
            "of a strategy of your own that build is called in, too.",
        ):
            fastnet.build(model, "sgd")
