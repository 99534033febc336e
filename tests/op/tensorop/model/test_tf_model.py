"""ModelOp of Keras models: outputs, those of layers, what they are fed with, and how they run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fastnet.errors import MissingKeyError
from fastnet.network import TFNetwork
from fastnet.network.build import build
from fastnet.op.tensorop.model import ModelOp
from tests.network.keras_models import (
    KERAS_3,
    infer,
    keras,
    layers,
    line,
    same_weights,
    twins,
    weights,
)

pytestmark = pytest.mark.tf

EAGER = pytest.mark.parametrize("eager", [False, True], ids=["static", "eager"])
X = tf.constant([[1.0, 2.0, 3.0, 4.0], [-1.0, 0.5, 0.0, 2.0]])


def made(model: Any, optimizer: Any = None, **kwargs: Any) -> Any:
    return build(lambda: model, optimizer, **kwargs)


class TestMaking:
    def test_more_keys_than_inputs(self) -> None:
        model = made(line(), model_name="line")
        (only,) = model.inputs
        with pytest.raises(ValueError, match=rf"'line'.*\['x', 'z'\].*1: \['{only.name}'\]"):
            ModelOp(model, ["x", "z"], "y")

    def test_models_that_know_of_no_inputs_yet(self) -> None:
        class Sum(keras.Model):  # type: ignore[name-defined,misc]
            def call(self, data: Any) -> Any:
                return data[0] + data[1]

        for model in (keras.Sequential([layers.Dense(2)]), Sum()):
            assert ModelOp(made(model), ["x", "z"], "y").inputs == ["x", "z"]

    @pytest.mark.skipif(not KERAS_3, reason="Keras 2 makes variables for all devices at once")
    def test_no_variables_on_several_devices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fastnet.backend.tf.models.replica_count", lambda: 2)
        model = made(unbuilt(), model_name="m")
        with pytest.raises(
            ValueError,
            match="Model 'm' has no variables before it knows the shape of its input, and",
        ):
            infer(TFNetwork([ModelOp(model, "x", "y")]), {"x": X}, eager=True)
        model.build((None, 4))
        infer(TFNetwork([ModelOp(model, "x", "y")]), {"x": X}, eager=True)


class Pair(keras.Model):
    def call(self, a: Any, b: Any) -> Any:
        return 10 * a + b


class PairTraining(keras.Model):
    def call(self, a: Any, b: Any, training: bool = False) -> Any:
        return (10 * a + b) if training else (a + b)


class OnePair(keras.Model):
    def call(self, pair: Any, training: bool = False) -> Any:
        return 10 * pair[0] + pair[1]


class Several(keras.Model):
    def call(self, *inputs: Any) -> Any:
        return 10 * inputs[0][0] + inputs[0][1]


class Scaled(keras.Model):
    def call(self, a: Any, scale: Any = 3.0) -> Any:
        return a * scale


class Named(keras.Model):
    def call(self, data: Any) -> Any:
        return data["left"] - data["right"]["deep"]


class KeywordOnly(keras.Model):
    def call(self, pair: Any, *, minus: bool = False) -> Any:
        return pair[0] - pair[1]


@EAGER
class TestInputs:
    def result(self, model: Any, inputs: Any, eager: bool, batch: Any = None, **mode: Any) -> Any:
        batch = batch or {"a": tf.constant([[2.0]]), "b": tf.constant([[1.0]])}
        network = TFNetwork([ModelOp(made(model), inputs, "y")])
        return infer(network, batch, eager=eager, **mode)["y"].numpy().tolist()

    @pytest.mark.parametrize(
        ("make", "inputs", "mode", "expected"),
        [
            (Pair, ["a", "b"], "infer", 21),
            (Pair, ("b", "a"), "infer", 12),
            (PairTraining, ["a", "b"], "infer", 3),
            (PairTraining, ["a", "b"], "train", 21),
            (OnePair, ["a", "b"], "infer", 21),
            (KeywordOnly, ["a", "b"], "infer", 1),
            # as in torch, `*inputs` is one parameter, and gets the list
            (Several, ["a", "b"], "infer", 21),
            (Scaled, "b", "infer", 3),
            (Scaled, ["b", "a"], "infer", 2),
        ],
    )
    def test_of_each_signature(
        self, eager: bool, make: Any, inputs: Any, mode: str, expected: int
    ) -> None:
        assert self.result(make(), inputs, eager, mode=mode) == [[expected]]

    def test_a_functional_model(self, eager: bool) -> None:
        a, b = layers.Input((1,)), layers.Input((1,))
        model = keras.Model([a, b], layers.Subtract()([a, b]))
        assert self.result(model, ["a", "b"], eager) == [[1]]
        assert self.result(model, ["b", "a"], eager) == [[-1]]

    def test_containers(self, eager: bool) -> None:
        batch = {"d": {"left": tf.constant([[5.0]]), "right": {"deep": tf.constant([[3.0]])}}}
        assert self.result(Named(), "d", eager, batch) == [[2]]
        inputs = {name: layers.Input((1,), name=name) for name in ("left", "right")}
        model = keras.Model(inputs, layers.Subtract()(list(inputs.values())))
        flat = {"d": {"left": tf.constant([[5.0]]), "right": tf.constant([[3.0]])}}
        assert self.result(model, "d", eager, flat) == [[2]]

    @pytest.mark.parametrize("kind", ["float32", "float64"])
    def test_arrays(self, eager: bool, kind: str) -> None:
        model, twin = twins(line)
        x = np.array([[1, 2], [3, 4]], dtype=kind)
        y = infer(TFNetwork([ModelOp(made(model), "x", "y")]), {"x": x}, eager=eager)["y"]
        np.testing.assert_allclose(y, twin(tf.constant(x, tf.float32)), rtol=1e-6)


def dropping() -> Any:
    return keras.Sequential([layers.Input((4,)), layers.Dropout(0.5), layers.BatchNormalization()])


class Dropping(keras.Model):
    """A model that does not ask whether it is training; its layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = layers.Dropout(0.5)
        self.norm = layers.BatchNormalization()

    def call(self, x: Any) -> Any:
        return self.norm(self.drop(x))


@EAGER
@pytest.mark.parametrize("make", [dropping, Dropping])
class TestTraining:
    def run(self, make: Any, eager: bool, mode: str, **op: Any) -> tuple[bool, bool]:
        """Return whether values were dropped, and whether averages moved."""
        model = make()
        model(X)
        before = weights(model)
        network = TFNetwork([ModelOp(made(model), "x", "y", **op)])
        # by far too large for a standard deviation, and so scaled where it acts as in training
        y = infer(network, {"x": tf.ones((64, 4)) * 1000}, mode, eager)["y"].numpy()
        return len(np.unique(y.round(3))) > 1, not same_weights(model, before)

    def test_in_training(self, eager: bool, make: Any) -> None:
        assert self.run(make, eager, "train") == (True, True)

    @pytest.mark.parametrize("mode", ["eval", "test", "infer"])
    def test_otherwise(self, eager: bool, make: Any, mode: str) -> None:
        assert self.run(make, eager, mode) == (False, False)

    def test_not_trainable(self, eager: bool, make: Any) -> None:
        assert self.run(make, eager, "train", trainable=False) == (False, False)
        assert self.run(make, eager, "train", trainable=False, gradients=False) == (False, False)


class Block(layers.Layer):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.up = layers.Dense(5, activation="tanh", name="up")
        self.down = layers.Dense(3, name="down")

    def call(self, x: Any) -> Any:
        return self.down(self.up(x))


class Derived(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.first = layers.Dense(4, name="first")
        self.block = Block(name="block")
        self.many = [layers.Dense(2, name="one"), layers.Dense(2, name="two")]
        self.idle = layers.Dense(7, name="idle")

    def call(self, x: Any) -> Any:
        x = self.block(self.first(x))
        for layer in self.many:
            x = layer(x)
        return x


def functional() -> Any:
    x = layers.Input((4,), name="in")
    y = layers.Dense(4, name="first")(x)
    y = keras.Sequential(
        [layers.Input((4,)), layers.Dense(5, name="up"), layers.Dense(3, name="down")], name="block"
    )(y)
    return keras.Model(x, layers.Dense(2, name="one")(y))


def sequential() -> Any:
    return keras.Sequential(
        [layers.Input((4,)), layers.Dense(4, name="first"), layers.Dense(2, name="one")]
    )


def unbuilt() -> Any:
    return keras.Sequential([layers.Dense(4, name="first"), layers.Dense(2, name="one")])


def by_hand(model: Any, x: Any) -> dict[str, Any]:
    """Run the layers of one of the models above, one after the other."""
    found = {}
    named = {layer.name: layer for layer in model.layers}
    for name in ("first", "block", "one", "two"):
        if name == "block" and name in named:
            block = named[name]
            parts = {layer.name: layer for layer in getattr(block, "layers", [])}
            found["up"] = (parts.get("up") or block.up)(x)
            found["down"] = (parts.get("down") or block.down)(found["up"])
            found["block"] = x = found["down"]
        elif name in named:
            found[name] = x = named[name](x)
    return found


# a place for each name: a layer comes before its own, and inputs count
PLACES = {
    functional: {"first": 1, "block": 2, "up": 4, "down": 5, "one": 6},
    sequential: {"first": 1, "one": 2},
    unbuilt: {"first": 0, "one": 1},
    Derived: {"first": 0, "block": 1, "up": 2, "down": 3, "one": 4, "two": 5},
}


@EAGER
class TestIntermediateLayers:
    @pytest.mark.parametrize("make", PLACES, ids=lambda make: make.__name__)
    def test_by_name_and_by_place(self, make: Any, eager: bool) -> None:
        model = made(make())
        places = PLACES[make]
        keys = [*places, *[str(place) for place in places.values()]]
        op = ModelOp(
            model, "x", ["y", *keys], intermediate_layers=[*places.keys(), *places.values()]
        )
        network = TFNetwork([op])
        for size in (2, 2, 1):
            x = X[:size]
            result = infer(network, {"x": x}, eager=eager)
            wanted = by_hand(model, x)
            for name, place in places.items():
                np.testing.assert_allclose(result[name], wanted[name], rtol=1e-5, atol=1e-6)
                np.testing.assert_array_equal(result[str(place)], result[name])
            np.testing.assert_array_equal(result["y"], result[list(places)[-1]])

    @pytest.mark.parametrize(("place", "name"), [(-1, "one"), (-2, "down"), (-7, None)])
    def test_places_from_the_end(self, place: int, name: str | None, eager: bool) -> None:
        model = made(functional())
        op = ModelOp(model, "x", ["y", "h"], intermediate_layers=place)
        if name is None:
            # the model's input, which is no step of its own
            with pytest.raises(RuntimeError, match="did not run"):
                infer(TFNetwork([op]), {"x": X}, eager=eager)
            return
        h = infer(TFNetwork([op]), {"x": X}, eager=eager)["h"]
        np.testing.assert_allclose(h, by_hand(model, X)[name], rtol=1e-5, atol=1e-6)

    def test_own_outputs_by_name(self, eager: bool) -> None:
        x = layers.Input((4,))
        hidden = layers.Dense(2, name="hidden")(x)
        model = made(keras.Model(x, {"b": layers.Dense(3)(hidden), "a": layers.Dense(1)(hidden)}))
        op = ModelOp(model, "x", ["a", "b", "h"], intermediate_layers="hidden")
        result = infer(TFNetwork([op]), {"x": X}, eager=eager)
        assert [tuple(result[key].shape) for key in "abh"] == [(2, 1), (2, 3), (2, 2)]
        result = infer(TFNetwork([ModelOp(model, "x", ["a", "b"])]), {"x": X}, eager=eager)
        assert [tuple(result[key].shape) for key in "ab"] == [(2, 1), (2, 3)]
        for keys, count in ((["a", "c", "h"], "['a', 'c'] by name"), (["c", "h"], "['c'] by name")):
            op = ModelOp(model, "x", keys, intermediate_layers="hidden")
            with pytest.raises(ValueError, match="that its model returned") as caught:
                infer(TFNetwork([op]), {"x": X}, eager=eager)
            assert count in str(caught.value)

    def test_after_an_error_too(self, eager: bool) -> None:
        fails: list[int] = []

        class Failing(layers.Layer):
            def call(self, x: Any) -> Any:
                if fails:
                    raise ArithmeticError("inside")
                return x * 2

        x = layers.Input((4,))
        model = made(keras.Model(x, Failing(name="last")(layers.Dense(4, name="first")(x))))
        op = ModelOp(model, "x", ["y", "h", "k"], intermediate_layers=["first", "last"])
        network = TFNetwork([op])
        fails.append(1)
        with pytest.raises(Exception, match="inside"):
            infer(network, {"x": X}, eager=eager)
        for name in ("first", "last"):
            assert "call" not in vars(model.get_layer(name))
        fails.clear()
        result = infer(network, {"x": X}, eager=eager)
        np.testing.assert_array_equal(result["k"], result["h"] * 2)

    def test_a_layer_that_does_not_run(self, eager: bool) -> None:
        op = ModelOp(made(Derived()), "x", ["y", "h"], intermediate_layers="idle")
        with pytest.raises(RuntimeError, match="idle") as caught:
            infer(TFNetwork([op]), {"x": X}, eager=eager)
        assert str(caught.value) == (
            "The intermediate layer 'idle' did not run in the model's forward pass, so it has no "
            "output. Name a layer that runs on every pass."
        )
        assert "call" not in vars(op.model.idle)


def test_layers_that_there_are_not() -> None:
    model = made(functional(), model_name="m")
    with pytest.raises(MissingKeyError, match=r"'frist' of Functional.*Did you mean 'first'.*'up'"):
        ModelOp(model, "x", ["y", "h"], intermediate_layers="frist")
    for place in (7, -8):
        with pytest.raises(IndexError, match=rf"layer {place} of Functional, which has 7.*'up'"):
            ModelOp(model, "x", ["y", "h"], intermediate_layers=place)
