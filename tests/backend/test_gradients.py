"""Gradients of tensors, models that are run, and calls of traced functions."""

from __future__ import annotations

import contextlib
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from fastnet import backend
from fastnet.backend.torch import backward
from tests.backend.makers import WITH_GRADIENTS, make, read
from tests.network.programs import line, twins


class Tape:
    """A tape of TensorFlow, or what stands in for it in torch."""

    def __init__(self, framework: str) -> None:
        self.framework = framework
        self.tape: Any = contextlib.nullcontext()
        if framework == "tf":
            self.tape = pytest.importorskip("tensorflow").GradientTape(persistent=True)

    def __enter__(self) -> Any:
        entered = self.tape.__enter__()
        return {} if entered is None else {"tape": entered}

    def __exit__(self, *error: Any) -> None:
        self.tape.__exit__(*error)


def watched(framework: str, value: Any, tape: dict[str, Any]) -> Any:
    return backend.watch(make(framework, np.asarray(value)), **tape)


@WITH_GRADIENTS
class TestGetGradient:
    def test_of_one_or_several(self, framework: str) -> None:
        with Tape(framework) as tape:
            x, z, other = (watched(framework, one, tape) for one in ([1.0, 2.0], 2.0, 3.0))
            y = x * x * z
            alone = backend.get_gradient(y, x, **tape)
            sources = [x, z, other]
            several = [backend.get_gradient(y, one, **tape) for one in (sources, tuple(sources))]
        assert read(alone).tolist() == [4, 8]
        for found in several:
            assert read(found[0]).tolist() == [4, 8]
            assert read(found[1]) == 5
            assert found[2] is None

    def test_of_higher_order(self, framework: str) -> None:
        with Tape(framework) as tape:
            x = watched(framework, [1.0, 2.0], tape)
            y = x * x * x
            plain = backend.get_gradient(y, x, **tape)
            kept = backend.get_gradient(y, x, higher_order=True, **tape)
            second = backend.get_gradient(kept, x, **tape)
        assert read(plain).tolist() == read(kept).tolist() == [3, 12]
        assert read(second).tolist() == [6, 12]
        assert framework == "tf" or not plain.requires_grad


def test_the_graph_of_torch_is_kept_unless_told() -> None:
    x = torch.tensor([1.0], requires_grad=True)
    y = x**2
    assert backend.get_gradient(y, x).tolist() == [2.0]
    assert backend.get_gradient(y, x, retain_graph=False).tolist() == [2.0]
    with pytest.raises(RuntimeError):
        backend.get_gradient(y, x)


def test_watching_in_torch_copies_leaves_only() -> None:
    plain = torch.tensor([1.0, 2.0])
    inside = backend.watch(plain) * 3
    assert not plain.requires_grad
    assert backend.watch(inside) is inside
    with pytest.raises(ValueError, match="ndarray"):
        backend.watch(np.ones(2))


@pytest.mark.tf
def test_tensorflow_needs_a_tape() -> None:
    tf = pytest.importorskip("tensorflow")
    with pytest.raises(ValueError, match=r"TensorFlow.*'tape'"):
        backend.get_gradient(tf.constant(1.0), tf.constant(1.0))
    with pytest.raises(ValueError, match=r"needs a tape.*state\['tape'\]"):
        backend.watch(tf.constant(1.0))


class TestFeedForward:
    @pytest.mark.parametrize("training", [True, False])
    def test_of_torch(self, training: bool) -> None:
        dropout, x = torch.nn.Dropout(0.5), torch.ones(1000)
        y = backend.feed_forward(dropout, x, training=training)
        assert dropout.training is training
        assert torch.equal(y, x) is not training
        model, other = torch.nn.Bilinear(2, 3, 4), torch.ones(1, 3)
        expected = model(torch.ones(1, 2), other)
        found = backend.feed_forward(model, np.ones((1, 2), "float32"), other, training=training)
        assert torch.equal(found, expected)

    @pytest.mark.tf
    @pytest.mark.parametrize("training", [True, False])
    def test_of_keras(self, training: bool) -> None:
        tf = pytest.importorskip("tensorflow")

        class Asking(tf.keras.Model):  # type: ignore[misc]
            def call(self, a: Any, b: Any = None, training: bool = False) -> Any:
                return (a if b is None else a + b) * (2.0 if training else 1.0)

        class NotAsking(tf.keras.Model):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.drop = tf.keras.layers.Dropout(0.5)

            def call(self, x: Any) -> Any:
                return self.drop(x)

        factor, x = 2 if training else 1, tf.constant(1.0)
        assert float(backend.feed_forward(Asking(), x, training=training)) == factor
        assert float(backend.feed_forward(Asking(), x, 2 * x, training=training)) == 3 * factor
        array = np.array(1.0, "float32")
        assert float(backend.feed_forward(Asking(), array, training=training)) == factor
        y = backend.feed_forward(NotAsking(), tf.ones((1, 64)), training=training)
        assert (len(np.unique(y)) == 2) is training

    @pytest.mark.parametrize("given", [object(), torch.nn.Linear], ids=["object", "class"])
    def test_of_no_model(self, given: Any) -> None:
        with pytest.raises(ValueError, match="Unrecognized model instance"):
            backend.feed_forward(given, torch.ones(1))


@pytest.mark.parametrize("retain", [True, False])
@pytest.mark.parametrize("public", [True, False])
def test_backward_is_torchs(public: bool, retain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the engine itself, or by torch's public function where there is no engine."""
    if public:
        monkeypatch.setattr(backward, "run_backward", None)
    model, twin = twins(line)
    loss, other = (one(torch.ones(3, 2)).pow(2).mean() for one in (model, twin))
    backward.backward(loss, list(model.parameters()), retain)
    other.backward()
    for own, wanted in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(own.grad, wanted.grad)
    if retain:
        backward.backward(loss, list(model.parameters()), False)
    with pytest.raises(RuntimeError):
        backward.backward(loss, list(model.parameters()), False)


@pytest.mark.tf
@pytest.mark.parametrize("direct", [True, False])
def test_a_traced_function_is_called(direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the least overhead, or by the public way where TensorFlow lacks the shorter one."""
    tf = pytest.importorskip("tensorflow")
    graph = import_module("fastnet.backend.tf.graph")
    if not direct:
        monkeypatch.setattr(graph, "direct_call", lambda *of_a_function: None)
    factor = tf.Variable(3.0)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((None,), tf.float32)])
    def multiply(x: Any) -> list[Any]:
        with tf.control_dependencies([tf.debugging.assert_positive(x)]):
            return [x * factor]

    explained: list[Any] = []
    concrete = multiply.get_concrete_function()
    call = graph.caller(concrete, lambda *of_the_error: explained.append(of_the_error))
    x = tf.constant([1.0, 2.0])
    assert [result.numpy().tolist() for result in call([x])] == [[3.0, 6.0]]
    # What a graph captures is read in each call.
    factor.assign(10.0)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        call([-x])
    assert explained == [(caught.value, concrete.graph)]
    with tf.GradientTape() as tape:
        (result,) = call([x])
    assert result.numpy().tolist() == [10.0, 20.0]
    assert tape.gradient(result, factor) == 3


@pytest.mark.tf
@pytest.mark.parametrize("direct", [True, False])
def test_calls_that_a_tape_records_may_run_another_function(
    direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tf = pytest.importorskip("tensorflow")
    graph = import_module("fastnet.backend.tf.graph")
    if not direct:
        monkeypatch.setattr(graph, "direct_call", lambda *of_a_function: None)
    function = tf.function(lambda x: [2 * x], autograph=False)
    concrete = function.get_concrete_function(tf.TensorSpec((1,)))
    call = graph.caller(concrete, lambda error, graph: None, lambda tensors: [5 * tensors[0]])
    x = tf.constant([1.0])
    assert call([x])[0].numpy().tolist() == [2.0]
    with tf.GradientTape() as tape:
        tape.watch(x)
        (result,) = call([x])
    assert result.numpy().tolist() == [5.0]
    assert tape.gradient(result, x).numpy().tolist() == [5.0]
