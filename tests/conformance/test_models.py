"""ModelOp: what a model is fed with, by place and by name, its outputs, and those of its layers."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fastnet
from fastnet.errors import MissingKeyError
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp
from tests.conformance.agreement import assert_same
from tests.conformance.failures import refusing, words_of
from tests.conformance.frameworks import Framework, tf

X = np.arange(6, dtype="float32").reshape(2, 3)
Parts = namedtuple("Parts", ["logits", "hidden"])


def model_of(fw: Framework, call: Callable[..., Any], **layers: tuple[int, int]) -> Any:
    """Build a model with the given forward pass, and dense layers of the given sizes."""
    is_torch = fw.target == "torch"
    base, name = (torch.nn.Module, "forward") if is_torch else (tf.keras.Model, "call")

    def init(self: Any) -> None:
        base.__init__(self)
        for layer, (inputs, outputs) in layers.items():
            if is_torch:
                setattr(self, layer, torch.nn.Linear(inputs, outputs))
            else:
                setattr(self, layer, tf.keras.layers.Dense(outputs, name=layer))

    return fastnet.build(type("Own", (base,), {"__init__": init, name: call}), None, model_name="m")


def layered(fw: Framework, returns: Callable[[Any], Any] = lambda y: y) -> Any:
    return model_of(
        fw,
        lambda self, x: returns(self.last(self.first(x))),
        first=(3, 4),
        last=(4, 2),
        idle=(1, 1),
    )


def in_order(self: Any, a: Any, b: Any) -> Any:
    return 10 * a + b


def difference(self: Any, pair: Any, *, minus: bool = True) -> Any:
    return pair[0] - pair[1] if minus else pair[0]


def scaled(self: Any, a: Any, scale: Any = 3.0) -> Any:
    return a * scale


@pytest.mark.parametrize(
    ("call", "inputs", "expected"),
    [
        (in_order, ["a", "b"], 21),
        (in_order, ("b", "a"), 12),
        (in_order, {"b": "a", "a": "b"}, 12),
        (lambda self, pair: 10 * pair[0] + pair[1], ["a", "b"], 21),
        (difference, ["a", "b"], 1),
        # as in FastEstimator, `*inputs` is one parameter, and gets the list
        (lambda self, *inputs: 10 * inputs[0][0] + inputs[0][1], ["a", "b"], 21),
        (scaled, "b", 3),
        (scaled, ["b", "a"], 2),
        (scaled, {"a": "b"}, 3),
    ],
)
def test_inputs_of_each_signature(fw: Framework, call: Any, inputs: Any, expected: int) -> None:
    network = fw.network([ModelOp(model_of(fw, call), inputs, "y")])
    batch = {"a": np.array([[2.0]], "float32"), "b": np.array([[1.0]], "float32")}
    assert fw.step(network, batch)["y"].tolist() == [[expected]]


def test_inputs_that_do_not_fit_the_signature(fw: Framework) -> None:
    model = model_of(fw, in_order)
    with refusing(ValueError, "ModelOp", "'m'", "'aa'", "Did you mean 'a'"):
        ModelOp(model, {"aa": "x", "b": "x"}, "y")
    with refusing(ValueError, "ModelOp", "'m'", "missing", "'a'"):
        ModelOp(model, {"b": "x"}, "y")
    op = ModelOp(model, {"a": "x", "b": "z"}, "y")
    op.inputs.pop()
    with refusing(ValueError, "ModelOp", "'m'", "'a'", "'b'", "'x'"):
        fw.network([op])


class TestOutputs:
    @pytest.mark.parametrize(
        ("returns", "parts"),
        [(lambda y: {"logits": y}, ["logits"]), (lambda y: Parts(y, -y), ["logits", "hidden"])],
    )
    def test_with_parts(self, fw: Framework, returns: Any, parts: list[str]) -> None:
        model = layered(fw, returns)
        double = LambdaOp(lambda y: y.shape and y * 2, "y", "z")
        result = fw.step(fw.network([ModelOp(model, "x", {"logits": "y"}), double]), {"x": X})
        assert_same(result["z"], 2 * result["y"])
        fail = LambdaOp(lambda y: y.no_such_thing, "y", "z")
        with pytest.raises(AttributeError) as caught:
            fw.step(fw.network([ModelOp(model, "x", {"logits": "y"}), fail]), {"x": X})
        assert "returned it" not in "".join(words_of(caught.value))
        advice = f"returned it, with the parts {parts}", "outputs={'logits': 'y'}) selects one"
        with refusing(AttributeError, "The value of 'y' is of type", "model 'm'", *advice):
            fw.step(fw.network([ModelOp(model, "x", "y"), double]), {"x": X})
        with refusing(MissingKeyError, "ModelOp of 'm' selects 'logit'", "Did you mean 'logits'?"):
            fw.step(fw.network([ModelOp(model, "x", {"logit": "y"})]), {"x": X})
        with refusing(ValueError, "ModelOp", "'m'", "'first'", "as a list"):
            ModelOp(model, "x", {"logits": "y"}, intermediate_layers="first")

    def test_without_parts(self, fw: Framework) -> None:
        with refusing(MissingKeyError, "ModelOp of 'm' selects 'y'", "whose values have no names"):
            fw.step(fw.network([ModelOp(layered(fw), "x", {"y": "y"})]), {"x": X})


class TestIntermediateLayers:
    def run(self, fw: Framework, model: Any, keys: list[str], layers: Any = "first") -> Any:
        op = ModelOp(model, "x", [*keys, "h"], intermediate_layers=layers)
        return fw.step(
            fw.network([op, LambdaOp(lambda x: model.first(x), "x", "wanted")]), {"x": X}
        )

    @pytest.mark.parametrize("layers", ["first", ("first",), [-3]], ids=str)
    def test_by_name_and_by_place(self, fw: Framework, layers: Any) -> None:
        result = self.run(fw, layered(fw), ["y"], layers)
        assert result["h"].shape == (2, 4)
        assert_same(result["h"], result["wanted"])

    @pytest.mark.parametrize(
        ("returns", "keys"),
        [(lambda y: {"z": 2 * y, "w": -y, "y": y}, ["y", "z"]), (lambda y: [y], ["y"])],
    )
    def test_beside_the_model_s_own_outputs(self, fw: Framework, returns: Any, keys: Any) -> None:
        result = self.run(fw, layered(fw, returns), keys)
        assert_same(result["h"], result["wanted"])
        assert result["y"].shape == (2, 2)
        assert "z" not in keys or np.array_equal(result["z"], 2 * result["y"])

    @pytest.mark.parametrize(
        ("returns", "keys", "kind", "text"),
        [
            (lambda y: {"a": y}, ["y"], ValueError, "the dict that its model returned"),
            (lambda y: (y, y), ["y"], ValueError, "but its model returned 2 values"),
            (lambda y: y, ["y", "z"], TypeError, "but its model returned"),
        ],
    )
    def test_beside_other_outputs_than_those_that_are_named(
        self, fw: Framework, returns: Any, keys: list[str], kind: Any, text: str
    ) -> None:
        with refusing(kind, f"ModelOp (inputs ['x'], outputs {[*keys, 'h']})", text):
            self.run(fw, layered(fw, returns), keys)

    def test_that_do_not_run(self, fw: Framework) -> None:
        with refusing(RuntimeError, "The intermediate layer 'idle' did not run"):
            self.run(fw, layered(fw), ["y"], ["idle"])

    @pytest.mark.parametrize(
        ("layers", "kind", "parts"),
        [
            ("frist", MissingKeyError, ["'frist' of Own", "Did you mean 'first'"]),
            (9, IndexError, ["layer 9 of Own, which has"]),
            (-9, IndexError, ["layer -9 of Own, which has"]),
            ([1.5], ValueError, ["'m'", "1.5 of type float"]),
            (["first", "last"], ValueError, ["['first', 'last']", "one for each layer"]),
        ],
    )
    def test_that_there_are_not(self, fw: Framework, layers: Any, kind: Any, parts: Any) -> None:
        with refusing(kind, *parts):
            fw.network([ModelOp(layered(fw), "x", ["y", "h"], intermediate_layers=layers)])
