"""Trainable parameters that no optimizer updates are reported when a network is made."""

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


def network(model: Any, *ops: Any, update: bool = True) -> Any:
    updates = [UpdateOp(model, "loss")] if update else []
    loss = LambdaOp(lambda y: y, "y", "loss")
    return fastnet.Network([ModelOp(model, "x", "y"), *ops, loss, *updates])


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
    with pytest.warns(UserWarning, match="no optimizer updates: 'held") as caught:
        network(parts.build(), wrap(parts.variable))
    assert len(caught) == 1
    assert all(part in str(caught[0].message) for part in ("Holding", "fastnet.build", "freeze"))
    assert caught[0].filename == __file__


def test_the_parameters_of_a_layer(parts: Parts) -> None:
    with pytest.warns(UserWarning, match="no optimizer updates") as caught:
        network(parts.build(), Holding(parts.layer))
    for name in ("weight", "bias") if parts.fw.target == "torch" else ("kernel", "bias"):
        variable = getattr(parts.layer, name)
        assert f"held.{getattr(variable, 'name', None) or name}" in str(caught[0].message)


def test_a_layer_of_keras_that_is_not_built() -> None:
    parts, layers = Parts(FRAMEWORKS["tf-static"]), tf.keras.layers
    with pytest.warns(UserWarning, match="no optimizer updates: 'held'"):
        network(parts.build(), Holding(layers.Dense(1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(parts.build(), Holding(layers.Flatten()), Holding(layers.Dense(1, trainable=False)))


def test_methods_of_a_layer(parts: Parts) -> None:
    with pytest.warns(UserWarning, match="no optimizer updates") as caught:
        network(parts.build(), LambdaOp(parts.layer.__call__, "y", "z"))
    assert "'fn." in str(caught[0].message)


def test_parameters_of_an_optimizer_are_trained() -> None:
    """Whether they are of another model, which the optimizer updates too, or of none."""
    extra = torch.nn.Parameter(torch.ones(1))
    first = fastnet.build(lambda: torch.nn.Linear(1, 1), "sgd")
    second = torch.nn.Linear(1, 1)
    first.optimizer.add_param_group({"params": [*second.parameters(), extra]})
    second = fastnet.build(second, lambda _: first.optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(first, ModelOp(second, "x", "z"), Holding(extra))


def test_parameters_that_need_no_training(parts: Parts) -> None:
    model, other = parts.build(), parts.build("other")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(model, Holding(parts.frozen), Holding(other))
        network(model, Holding(parts.fw.dense_layers(model)[0]))
        network(model, Holding(parts.layer, mode="eval"))
        network(model, Holding(parts.layer), update=False)


def test_a_weak_proxy_of_a_deleted_object() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(Parts(FRAMEWORKS["torch"]).build(), Holding(weakref.proxy(set())))
