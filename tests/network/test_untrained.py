"""Trainable parameters that no optimizer updates are reported when a network is made."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import fastnet
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.meta import Fuse
from fastnet.op.tensorop.model import ModelOp, UpdateOp


class Holding(TensorOp):
    """An op with an attribute of the test's choice."""

    def __init__(self, held: Any, mode: str | None = None) -> None:
        super().__init__(inputs="y", outputs="y", mode=mode)
        self.held = held

    def forward(self, data: Any, state: Any) -> Any:
        return data


def torch_parts() -> SimpleNamespace:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(1, 1)
    frozen = torch.nn.Linear(1, 1).requires_grad_(False)

    def build(name: str = "line", extra: Any = None) -> Any:
        rest = [] if extra is None else [extra]
        return fastnet.build(
            lambda: torch.nn.Linear(1, 1),
            lambda parameters: torch.optim.SGD([*parameters, *rest], lr=0.1),
            model_name=name,
        )

    return SimpleNamespace(
        build=build,
        variable=torch.nn.Parameter(torch.ones(1)),
        layer=layer,
        names=["'held.weight'", "'held.bias'"],
        frozen=frozen,
    )


def tf_parts() -> SimpleNamespace:
    tf = pytest.importorskip("tensorflow")
    keras = tf.keras

    def make() -> Any:
        return keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])

    def build(name: str = "line", extra: Any = None) -> Any:
        return fastnet.build(make, "sgd", model_name=name)

    layer, frozen = keras.layers.Dense(1, name="top"), keras.layers.Dense(1)
    layer.build((None, 1))
    frozen.build((None, 1))
    frozen.trainable = False
    return SimpleNamespace(
        build=build,
        variable=tf.Variable([1.0]),
        layer=layer,
        names=[f"held.{one.name}" for one in layer.trainable_variables],
        frozen=frozen,
    )


@pytest.fixture(params=[torch_parts, tf_parts], ids=["torch", "tf"])
def parts(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Models and parameters of a framework."""
    made: SimpleNamespace = request.param()
    return made


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
def test_a_parameter(parts: SimpleNamespace, wrap: Callable[[Any], Any]) -> None:
    with pytest.warns(UserWarning, match="no optimizer updates: 'held") as caught:
        network(parts.build(), wrap(parts.variable))
    assert len(caught) == 1
    assert all(part in str(caught[0].message) for part in ("Holding", "fastnet.build", "freeze"))
    assert caught[0].filename == __file__


def test_the_parameters_of_a_layer(parts: SimpleNamespace) -> None:
    with pytest.warns(UserWarning, match="no optimizer updates") as caught:
        network(parts.build(), Holding(parts.layer))
    assert all(name in str(caught[0].message) for name in parts.names)


def test_a_layer_of_keras_that_is_not_built() -> None:
    parts = tf_parts()
    layers = pytest.importorskip("tensorflow").keras.layers
    with pytest.warns(UserWarning, match="no optimizer updates: 'held'"):
        network(parts.build(), Holding(layers.Dense(1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(parts.build(), Holding(layers.Flatten()), Holding(layers.Dense(1, trainable=False)))


def test_methods_of_a_layer(parts: SimpleNamespace) -> None:
    with pytest.warns(UserWarning, match="no optimizer updates") as caught:
        network(parts.build(), LambdaOp(parts.layer.__call__, "y", "z"))
    assert "'fn." in str(caught[0].message)


def test_an_optimizer_of_two_models_that_one_of_them_updates() -> None:
    torch = pytest.importorskip("torch")
    first = fastnet.build(lambda: torch.nn.Linear(1, 1), "sgd")
    first.optimizer.add_param_group({"params": (second := torch.nn.Linear(1, 1)).parameters()})
    second = fastnet.build(second, lambda _: first.optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(first, ModelOp(second, "x", "z"))


def test_parameters_that_need_no_training(parts: SimpleNamespace) -> None:
    model, other = parts.build(), parts.build("other")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(model, Holding(parts.frozen), Holding(other))
        network(model, Holding(model.layers[-1] if hasattr(model, "layers") else model.weight))
        network(model, Holding(parts.layer, mode="eval"))
        network(model, Holding(parts.layer), update=False)


def test_a_weak_proxy_of_a_deleted_object() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(torch_parts().build(), Holding(weakref.proxy(set())))


def test_a_parameter_of_an_optimizer_is_trained() -> None:
    parts = torch_parts()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(parts.build(extra=parts.variable), Holding(parts.variable))
