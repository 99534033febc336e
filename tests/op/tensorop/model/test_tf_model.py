"""ModelOp of Keras models: outputs, those of layers, what they are fed with, and how they run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fastnet.network import TFNetwork
from fastnet.network.build import build
from fastnet.op.tensorop.model import ModelOp
from tests.network.keras_models import (
    infer,
    keras,
    layers,
    line,
    same_weights,
    twins,
    weights,
)
from tests.network.tf_programs import EITHER_WAY

pytestmark = pytest.mark.tf

X = tf.constant([[1.0, 2.0, 3.0, 4.0], [-1.0, 0.5, 0.0, 2.0]])


def made(model: Any, optimizer: Any = None, **kwargs: Any) -> Any:
    return build(lambda: model, optimizer, **kwargs)


class PairTraining(keras.Model):
    def call(self, a: Any, b: Any, training: bool = False) -> Any:
        return (10 * a + b) if training else (a + b)


class KeywordOnly(keras.Model):
    def call(self, pair: Any, *, minus: bool = False) -> Any:
        return pair[0] - pair[1]


class Named(keras.Model):
    def call(self, data: Any) -> Any:
        return {"y": 10 * data["left"] + data["right"], "other": data["left"]}


def functional_pair() -> Any:
    a, b = layers.Input((1,), name="left"), layers.Input((1,), name="right")
    return keras.Model([a, b], layers.Subtract()([a, b]))


@EITHER_WAY
class TestInputs:
    @pytest.mark.parametrize(
        ("make", "inputs", "mode", "expected"),
        [
            (PairTraining, ["a", "b"], "infer", 3),
            (PairTraining, ["a", "b"], "train", 21),
            (KeywordOnly, ["a", "b"], "infer", 1),
            (functional_pair, ["b", "a"], "infer", -1),
            # by name
            (Named, {"left": "a", "right": "b"}, "infer", 21),
            (functional_pair, {"right": "a", "left": "b"}, "infer", -1),
        ],
    )
    def test_of_each_signature(
        self, eager: bool, make: Any, inputs: Any, mode: str, expected: int
    ) -> None:
        batch = {"a": tf.constant([[2.0]]), "b": tf.constant([[1.0]])}
        outputs: Any = {"y": "y"} if make is Named else "y"
        network = TFNetwork([ModelOp(made(make()), inputs, outputs)])
        assert infer(network, batch, mode, eager)["y"].numpy().tolist() == [[expected]]

    def test_arrays(self, eager: bool) -> None:
        model, twin = twins(line)
        x = np.array([[1, 2], [3, 4]], dtype="float64")
        y = infer(TFNetwork([ModelOp(made(model), "x", "y")]), {"x": x}, eager=eager)["y"]
        np.testing.assert_allclose(y, twin(tf.constant(x, tf.float32)), rtol=1e-6)


@EITHER_WAY
@pytest.mark.filterwarnings("error:The structure of `inputs`")
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([[1.0, 2.0], [3.0, 4.0]], "list"),
        ([3.0, 4.0], "list"),
        (["a", "b"], "list"),
        ([], "list"),
        # Keras would read the first item only.
        ((tf.ones((3, 2)), tf.zeros((3, 2))), "tuple"),
    ],
)
def test_list_in_place_of_a_tensor(value: Any, kind: str, eager: bool) -> None:
    network = TFNetwork([ModelOp(made(line(), model_name="m"), "image", "y")])
    with pytest.raises(
        TypeError, match=rf"ModelOp of 'm' .*'image', whose value is a {kind}.*array"
    ):
        infer(network, {"image": value}, eager=eager)


@EITHER_WAY
def test_list_of_the_tensors_of_all_inputs(eager: bool) -> None:
    network = TFNetwork([ModelOp(made(functional_pair()), "pair", "y")])
    batch = {"pair": [tf.constant([[2.0]]), tf.constant([[5.0]])]}
    assert infer(network, batch, eager=eager)["y"].numpy().tolist() == [[-3.0]]


def test_inputs_that_there_are_not() -> None:
    model = made(line(), model_name="m")
    (only,) = model.inputs
    with pytest.raises(ValueError, match=rf"'m'.*\['x', 'z'\].*1: \['{only.name}'\]"):
        ModelOp(model, ["x", "z"], "y")
    model = made(functional_pair(), model_name="m")
    with pytest.raises(ValueError, match=r"ModelOp.*'m'.*'left'.*'rigth'.*'right'"):
        ModelOp(model, {"left": "a", "rigth": "b"}, "y")
    model = made(PairTraining(), model_name="m")
    with pytest.raises(ValueError, match=r"ModelOp.*'m'.*'c'.*takes \(a.*b.*training.*'b'"):
        ModelOp(model, {"a": "a", "c": "b"}, "y")


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


@EITHER_WAY
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

    def test_of_the_mode_and_of_trainable(self, eager: bool, make: Any) -> None:
        assert self.run(make, eager, "train") == (True, True)
        assert self.run(make, eager, "eval") == (False, False)
        assert self.run(make, eager, "train", trainable=False) == (False, False)
        assert self.run(make, eager, "train", trainable=False, gradients=False) == (False, False)


class TestMasksOfKeras:
    IDS = tf.constant([[1, 2, 0], [3, 0, 0], [1, 2, 3]])

    def models(self) -> tuple[Any, Any]:
        embedding = keras.Sequential([layers.Input((3,)), layers.Embedding(4, 2, mask_zero=True)])
        return embedding, keras.Sequential([layers.Input((3, 2)), layers.LSTM(2)])

    @EITHER_WAY
    @pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask")
    def test_reach_the_next_model(self, eager: bool) -> None:
        embedding, recurrent = (made(one) for one in self.models())
        network = TFNetwork([ModelOp(embedding, "ids", "x"), ModelOp(recurrent, "x", "y")])
        y = infer(network, {"ids": self.IDS}, eager=eager)["y"]
        np.testing.assert_allclose(y, recurrent(embedding(self.IDS)), rtol=1e-5)

    @pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask")
    def test_of_a_batch_are_reported_where_a_graph_loses_them(self) -> None:
        embedding, recurrent = self.models()
        x = embedding(self.IDS)
        unmasked = recurrent(tf.constant(x.numpy()))
        network = TFNetwork(ModelOp(made(recurrent), "x", "y"))
        y = infer(network, {"x": x}, eager=True)["y"]
        np.testing.assert_allclose(y, recurrent(x), rtol=1e-5)
        with pytest.warns(UserWarning, match=r"'x' in the batch has a mask.*eager=True"):
            y = infer(network, {"x": x})["y"]
        np.testing.assert_allclose(y, unmasked, rtol=1e-5)


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
        self.many = [layers.Dense(2, name="one")]

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


def by_hand(model: Any, x: Any) -> dict[str, Any]:
    """Run the layers of one of the models above, one after the other."""
    first, block, one = (model.get_layer(name) for name in ("first", "block", "one"))
    up, down = getattr(block, "layers", None) or (block.up, block.down)
    found = {"first": first(x)}
    found["up"] = up(found["first"])
    found["block"] = found["down"] = down(found["up"])
    return {**found, "one": one(found["block"])}


# a place for each name: a layer comes before its own, and inputs count
PLACES = {
    functional: {"first": 1, "block": 2, "up": 4, "down": 5, "one": 6},
    Derived: {"first": 0, "block": 1, "up": 2, "down": 3, "one": 4},
}


@EITHER_WAY
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
