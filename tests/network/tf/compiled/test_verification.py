"""Faults that are put into compiled steps are found, and verification changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet import CompileOptions
from fastnet.network import TFNetwork
from fastnet.network.deviations import Excess
from fastnet.network.tf import verification, xla_program
from fastnet.network.tf.step_tracer import TracedGraph
from fastnet.network.verification_limits import TENSORFLOW
from fastnet.op.tensorop import LambdaOp
from tests.network.keras_models import (
    KERAS_3,
    batches,
    keras,
    layers,
    mlp,
    supervised,
    tf,
    train,
    variables_of,
    weights,
)
from tests.network.tf.compiled.steps import (
    fallbacks,
    in_step,
    is_compiled,
    momentum,
    pair,
    warned,
)

pytestmark = pytest.mark.tf

# Called with the values before and after a step; returns other values after it.
Fault = Callable[[Any, Any], Any]


def normed(rate: float = 0.0) -> Any:
    return keras.Sequential(
        [
            layers.Input((6,)),
            layers.Reshape((3, 2, 1)),
            layers.Conv2D(4, 2, padding="same"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(5, activation="tanh"),
            layers.Dropout(rate, seed=3),
            layers.Dense(5, activation="tanh"),
            layers.Dense(5, activation="tanh"),
            layers.Dense(3),
        ]
    )


def scaled(factor: float) -> Fault:
    return lambda before, after: [
        start + factor * (end - start) for start, end in zip(before, after, strict=True)
    ]


def exchanged(before: Any, after: Any) -> Any:
    steps = [end - start for start, end in zip(before, after, strict=True)]
    return [start + step for start, step in zip(before, steps[::-1], strict=True)]


def kept(before: Any, after: Any) -> Any:
    return before


def raw(variables: Sequence[Any]) -> list[Any]:
    return [getattr(variable, "_value", variable) for variable in variables]


def compile_with(fault: Fault, find_variables: Callable[[], Sequence[Any]]) -> Callable[[Any], Any]:
    """Return a compiler whose programs are the graph, but for the values of some variables."""

    def run(concrete: Any, tensors: list[Any]) -> Any:
        variables = raw(find_variables())
        before = [variable.read_value() for variable in variables]
        results = concrete(*tensors)
        after = [variable.read_value() for variable in variables]
        for variable, value in zip(variables, fault(before, after), strict=True):
            variable.assign(value)
        return results

    def compile(traced: TracedGraph) -> Any:
        concrete = traced.concrete
        inputs = concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]
        specs = [tf.TensorSpec(one.shape, one.dtype) for one in inputs]
        function = tf.function(partial(run, concrete), autograph=False)
        return function.get_concrete_function(specs)

    return compile


def slots(model: Any, name: str) -> list[Any]:
    return [slot for slot in variables_of(model.current_optimizer) if name in slot.path]


# What is changed otherwise than by the graph, and how.
FAULTS: dict[str, tuple[Callable[[Any], Sequence[Any]], Fault, str]] = {
    "a lost update": (lambda m: m.trainable_variables[2:3], kept, "adam"),
    "a lost update of a bias": (lambda m: m.trainable_variables[-1:], kept, "sgd"),
    "a doubled update": (lambda m: m.trainable_variables[-2:-1], scaled(2), "adam"),
    "a reversed update": (lambda m: m.trainable_variables[-1:], scaled(-1), "sgd"),
    "exchanged weights": (lambda m: m.trainable_variables[-6:-3:2], exchanged, "adam"),
    "a gradient that is off by 10 %": (lambda m: slots(m, "momentum")[-2:-1], scaled(1.1), "adam"),
    "a step that is off by 10 %": (lambda m: m.trainable_variables[4:5], scaled(1.1), "sgd"),
    "a slot left alone": (lambda m: slots(m, "velocity")[4:5], kept, "adam"),
    "statistics left alone": (lambda m: m.non_trainable_variables[:1], kept, "sgd"),
    "a variance that is off": (lambda m: m.non_trainable_variables[1:2], scaled(0.9), "adam"),
    "steps that are not counted": (lambda m: slots(m, "iteration"), kept, "adam"),
    "all parameters": (lambda m: m.trainable_variables, kept, "adam"),
}


@pytest.mark.skipif(not KERAS_3, reason="uses the paths of Keras 3's variables")
class TestFaults:
    @pytest.mark.parametrize("rate", [0.0, 0.3], ids=["plain", "dropout"])
    @pytest.mark.parametrize("case", FAULTS)
    def test_are_found(self, case: str, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
        find, fault, optimizer = FAULTS[case]
        network, plain, ours, other = pair(partial(normed, rate), optimizer, supervised)
        monkeypatch.setattr(
            xla_program, "function_for_xla", compile_with(fault, lambda: find(ours))
        )
        data = batches(2)
        with warned() as texts:
            train(network, data)
        (text,) = fallbacks(network)
        assert text is not None
        assert "the compiled step computes other values of variable '" in text
        assert len(texts) == 1
        train(plain, data)
        np.testing.assert_equal(weights(ours), weights(other))

    def test_of_a_frozen_draw(self, monkeypatch: pytest.MonkeyPatch) -> None:
        network, _, ours, _ = pair(partial(normed, 0.3), "sgd", supervised)
        (state,) = [v for v in ours.variables if "seed" in v.path]
        monkeypatch.setattr(xla_program, "function_for_xla", compile_with(kept, lambda: [state]))
        with warned():
            train(network, batches(1))
        assert "of its elements" in str(fallbacks(network)[0])

    def test_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        network, _, ours, _ = pair(partial(normed, 0.3), "adam", supervised)
        fault = compile_with(scaled(1.0), lambda: ours.trainable_variables)
        monkeypatch.setattr(xla_program, "function_for_xla", fault)
        train(network, batches(2))
        assert is_compiled(network)
        assert network.traces[0].unverified is None


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 draws from generators that XLA has not")
@pytest.mark.parametrize("optimizer", ["adam", momentum])
def test_rounding_is_no_difference(optimizer: Any) -> None:
    """Of gradients that are rounding errors, too, as that of a bias before normalization."""
    network, plain, *_ = pair(partial(normed, 0.3), optimizer, supervised)
    train(network, batches(3))
    assert is_compiled(network)
    assert network.traces[0].unverified is None
    del plain


def draw(x: Any) -> list[Any]:
    """Draw numbers of each kind and precision."""
    seed = tf.cast(tf.reduce_sum(x) * [1.0, 2.0], tf.int32)
    dtypes = tf.float32, tf.float16, tf.bfloat16
    return [
        *[tf.random.stateless_uniform((3, 5), seed, -1, 3, dtype) for dtype in dtypes],
        *[tf.random.stateless_normal((3, 5), seed, 1, 2, dtype) for dtype in dtypes],
        tf.random.stateless_uniform((7,), seed, 0, 100, tf.int32),
        tf.random.stateless_normal((), seed),
        tf.random.stateless_normal((0, 3), seed),
    ]


class TestRandomNumbers:
    @pytest.mark.parametrize("fallback_random", [False, True])
    def test_are_those_of_the_graph(self, fallback_random: bool) -> None:
        keys = [f"y{number}" for number in range(9)]
        ops = [LambdaOp(tf.autograph.experimental.do_not_convert(draw), "x", keys)]
        network = TFNetwork(ops, compile=CompileOptions(fallback_random=fallback_random))
        plain = TFNetwork(ops)
        data = [{"x": tf.constant([float(number)])} for number in range(3)]
        in_step(network, plain, data, mode="infer")
        assert is_compiled(network)
        assert network.traces[0].unverified is None

    def test_that_differ_are_not_verified(self) -> None:
        @tf.autograph.experimental.do_not_convert
        def truncated(x: Any) -> Any:
            return x + tf.random.stateless_truncated_normal((2,), [1, 2])

        network = TFNetwork(LambdaOp(truncated, "x", "y"), compile=True)
        with network("infer", 1):
            network.run_step({"x": tf.ones((2,))})
        assert is_compiled(network)
        reason = "it draws random numbers by 'StatelessTruncatedNormalV2', which differ in XLA"
        assert network.traces[0].unverified == reason

    def test_in_a_loop_are_not_verified(self) -> None:
        @tf.autograph.experimental.do_not_convert
        def looped(x: Any) -> Any:
            return tf.while_loop(
                lambda index, _: index < 3,
                lambda index, y: (index + 1, y + tf.random.stateless_uniform((2,), [1, index])),
                [0, x],
            )[1]

        network = TFNetwork(LambdaOp(looped, "x", "y"), compile=True)
        with network("infer", 1):
            network.run_step({"x": tf.ones((2,))})
        assert "differ in XLA" in str(network.traces[0].unverified)


class TestObserving:
    """What a verified step reads and writes is that of the graph alone."""

    def test_variables_are_written_by_the_graph_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        network, plain, ours, other = pair(mlp, "adam", supervised)
        values: list[Any] = []
        run = verification.Verifier._call_on_copies

        def watched(*args: Any) -> Any:
            values.append(weights(ours) + [np.array(v) for v in ours.current_optimizer.variables])
            found = run(*args)
            values.append(weights(ours) + [np.array(v) for v in ours.current_optimizer.variables])
            return found

        monkeypatch.setattr(verification.Verifier, "_call_on_copies", watched)
        # A disturbed run as well, in which all inputs and variables are others.
        excess = Excess(0, is_unwritten=False)
        monkeypatch.setattr(verification, "excesses", lambda *_: iter([excess]))
        data = batches(1)
        with warned():
            train(network, data)
        train(plain, data)
        assert len(values) == 2 * (2 + len(TENSORFLOW.disturbances))
        for before, after in zip(values[::2], values[1::2], strict=True):
            np.testing.assert_equal(before, after)
        np.testing.assert_equal(weights(ours), weights(other))

    def test_a_disturbed_step_that_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any) -> Any:
            raise tf.errors.InvalidArgumentError(None, None, "disturbed")

        network, _, ours, _ = pair(mlp, "adam", supervised)
        fault = compile_with(kept, lambda: ours.trainable_variables)
        monkeypatch.setattr(xla_program, "function_for_xla", fault)
        run = verification.Verifier._call_on_copies
        monkeypatch.setattr(
            verification.Verifier,
            "_call_on_copies",
            lambda self, concrete, *rest: (
                fail() if concrete is self._concrete else run(self, concrete, *rest)
            ),
        )
        with warned() as texts:
            train(network, batches(2))
        assert len(texts) == 1

    def test_memory_that_does_not_suffice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(verification, "free_memory", lambda: 100)
        network, *_ = pair(mlp, "sgd", supervised)
        train(network, batches(1))
        assert is_compiled(network)
        assert "copies of its variables" in str(network.traces[0].unverified)

    @pytest.mark.parametrize("free", [None, 1 << 40])
    def test_memory_that_suffices_or_is_unknown(
        self, free: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(verification, "free_memory", lambda: free)
        network, *_ = pair(mlp, "sgd", supervised)
        train(network, batches(1))
        assert network.traces[0].unverified is None

    def test_disabled(self) -> None:
        model = fastnet.build(mlp, "sgd", model_name="model")
        network = TFNetwork(supervised(model), compile=CompileOptions(verify=None))
        train(network, batches(1))
        assert [trace.unverified for trace in network.traces] == ["verify=None"]
