"""Trainable parameters in ops that no optimizer updates are findings."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")
torch = pytest.importorskip("torch")

import fastnet
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.meta import Fuse
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.conformance.frameworks import FRAMEWORKS, Framework, make_layers


class Holding(TensorOp):
    """An op with an attribute of the test's choice."""

    def __init__(self, held: Any, mode: str | None = None) -> None:
        super().__init__(inputs="y", outputs="y", mode=mode)
        self.held = held

    def forward(self, data: Any, state: Any) -> Any:
        return data


class Parts:
    """Models and parameters of a framework."""

    def __init__(self, fw: Framework) -> None:
        self.fw = fw
        self.variable = (torch.nn.Parameter if fw.target == "torch" else tf.Variable)(torch.ones(1))
        self.layer, self.frozen = self.make_layer(), self.make_layer(frozen=True)

    def make_layer(self, frozen: bool = False) -> Any:
        model = self.fw.make_model(make_layers(1, 1))
        self.fw.freeze(model, 0, frozen=frozen)
        return self.fw.dense_layers(model)[0]

    def build(self, name: str = "line") -> Any:
        return self.fw.build(make_layers(1, 1), "sgd", name=name)


@pytest.fixture(params=["torch", "tf-static"])
def parts(request: pytest.FixtureRequest) -> Parts:
    return Parts(FRAMEWORKS[request.param])


def findings(model: Any, *ops: Any, update: bool = True) -> list[str]:
    updates = [UpdateOp(model, "loss")] if update else []
    loss = LambdaOp(lambda y: y, "y", "loss")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = fastnet.Network([ModelOp(model, "x", "y"), *ops, loss, *updates])
        return [one.text for one in network.explain().findings if "updates: '" in one.text]


def scale_by_global(y: Any) -> Any:
    return y * GLOBAL


GLOBAL: Any = None


@pytest.mark.parametrize(
    "wrap",
    [
        lambda held: Holding(held),
        lambda held: Holding([held]),
        lambda held: Holding({"one": held}),
        lambda held: Holding({"one": [held]}),
        lambda held: Holding(lambda y: y * held),
        lambda held: Holding(partial(max, held)),
        lambda held: Fuse([Holding(held)]),
    ],
)
def test_a_parameter(parts: Parts, wrap: Callable[[Any], Any]) -> None:
    (text,) = findings(parts.build(), wrap(parts.variable))
    expected = ("no optimizer updates: 'held", "Holding", "fastnet.build", "freeze")
    assert all(part in text for part in expected)


def test_a_global_of_a_function(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "GLOBAL", parts.variable)
    (text,) = findings(parts.build(), LambdaOp(scale_by_global, "y", "z"))
    assert "no optimizer updates: 'fn.GLOBAL'" in text


def test_a_global_of_forward(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    class Scaling(TensorOp):
        def forward(self, data: Any, state: Any) -> Any:
            return data * GLOBAL

    monkeypatch.setitem(globals(), "GLOBAL", {"layer": parts.layer})
    (text,) = findings(parts.build(), Scaling("y", "z"))
    assert "no optimizer updates: 'forward.GLOBAL.layer." in text


def test_the_parameters_of_a_layer(parts: Parts) -> None:
    (text,) = findings(parts.build(), Holding(parts.layer))
    for name in ("weight", "bias") if parts.fw.target == "torch" else ("kernel", "bias"):
        variable = getattr(parts.layer, name)
        assert f"held.{getattr(variable, 'name', None) or name}" in text


def test_a_layer_of_keras_that_is_not_built() -> None:
    parts, layers = Parts(FRAMEWORKS["tf-static"]), tf.keras.layers
    (text,) = findings(parts.build(), Holding(layers.Dense(1)))
    assert "no optimizer updates: 'held'" in text
    frozen = Holding(layers.Dense(1, trainable=False))
    assert findings(parts.build(), Holding(layers.Flatten()), frozen) == []


def test_methods_of_a_layer(parts: Parts) -> None:
    (text,) = findings(parts.build(), LambdaOp(parts.layer.__call__, "y", "z"))
    assert "no optimizer updates: 'fn." in text


def test_parameters_of_an_optimizer_are_trained() -> None:
    """Whether they are of another model, which the optimizer updates too, or of none."""
    extra = torch.nn.Parameter(torch.ones(1))
    first = fastnet.build(lambda: torch.nn.Linear(1, 1), "sgd")
    second = torch.nn.Linear(1, 1)
    first.optimizer.add_param_group({"params": [*second.parameters(), extra]})
    second = fastnet.build(second, lambda _: first.optimizer)
    assert findings(first, ModelOp(second, "x", "z"), Holding(extra)) == []


def test_parameters_that_need_no_training(parts: Parts) -> None:
    model, other = parts.build(), parts.build("other")
    assert findings(model, Holding(parts.frozen), Holding(other)) == []
    assert findings(model, Holding(parts.fw.dense_layers(model)[0])) == []
    assert findings(model, Holding(parts.layer, mode="eval")) == []
    assert findings(model, Holding(parts.layer), update=False) == []


def test_a_weak_proxy_of_a_deleted_object() -> None:
    assert findings(Parts(FRAMEWORKS["torch"]).build(), Holding(weakref.proxy(set()))) == []


class TestWarning:
    """Entering a network for training warns of modules and layers, once."""

    @staticmethod
    def enter(parts: Parts, op: Any) -> list[str]:
        model = parts.build()
        loss = LambdaOp(lambda y: y, "y", "loss")
        network = fastnet.Network([ModelOp(model, "x", "y"), op, loss, UpdateOp(model, "loss")])
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for mode, epoch in (("train", 1), ("eval", 1), ("train", 2)):
                with network(mode, epoch):
                    pass
        return [str(one.message) for one in found if "no optimizer updates" in str(one.message)]

    def test_names_the_op_and_the_layer(self, parts: Parts) -> None:
        (text,) = self.enter(parts, Holding(parts.layer))
        assert all(part in text for part in ("Holding", "'held.", "fastnet.build", "freeze"))

    def test_is_not_of_what_is_frozen_or_trained(self, parts: Parts) -> None:
        other = parts.build("other")
        for held in (parts.frozen, other, parts.fw.dense_layers(other)[0]):
            assert self.enter(parts, Holding(held)) == []

    def test_names_a_module_in_two_ops_once(self, parts: Parts) -> None:
        both = Fuse([Holding(parts.layer), Holding(parts.layer)])
        assert len(self.enter(parts, both)) == 1

    def test_is_of_parameters_in_torch_and_not_of_variables(self, parts: Parts) -> None:
        count = 1 if parts.fw.target == "torch" else 0
        assert len(self.enter(parts, Holding(parts.variable))) == count

    def test_is_not_of_layers_that_are_not_built(self) -> None:
        parts, layers = Parts(FRAMEWORKS["tf-static"]), tf.keras.layers
        augment = tf.keras.Sequential([layers.RandomFlip(), layers.RandomRotation(0.1)])
        for held in (augment, layers.Add(), layers.Dense(1)):
            assert self.enter(parts, Holding(held)) == []
