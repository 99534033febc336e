"""Steps that XLA cannot compile, or computes otherwise, run as graphs, and `traces` says why."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet import CompileOptions
from fastnet.network import TFNetwork, program_set, step_times
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp
from tests.network.keras_models import (
    batches,
    keras,
    layers,
    line,
    mlp,
    supervised,
    tf,
    train,
    weights,
)
from tests.network.tf.compiled.steps import (
    fallbacks,
    is_compiled,
    pair,
    warned,
)
from tests.network.tf_programs import FITS

pytestmark = pytest.mark.tf

OP = "LambdaOp (op 0, inputs ['x'], outputs ['y'])"


def of(fn: Callable[[Any], Any], **options: Any) -> TFNetwork:
    quiet = tf.autograph.experimental.do_not_convert(fn)
    return TFNetwork(LambdaOp(quiet, "x", "y"), **{"compile": True, **options})


def run(network: TFNetwork, value: Any, **context: Any) -> Any:
    with network(**{"mode": "infer", "epoch": 1, **context}):
        return np.asarray(network.run_step({"x": tf.constant(value)})["y"])


ITEMS = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [3, 4]), -1)

REASONS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "strings": (lambda x: tf.strings.length(tf.strings.as_string(x)), "AsString"),
    "a print": (lambda x: [tf.print("seen"), x + 1][1], OP),
    "Python": (lambda x: tf.py_function(lambda y: y + 1, [x], tf.float32), "EagerPyFunc"),
    "a table": (lambda x: ITEMS.lookup(tf.cast(x, "int32")), "XLA cannot compile"),
    "an assertion": (
        lambda x: [tf.debugging.assert_positive(x), x * 2][1],
        "'Assert', which XLA leaves out",
    ),
    "a check of numbers": (
        lambda x: tf.debugging.check_numerics(x, "no number"),
        f"{OP} uses 'CheckNumerics'",
    ),
    "random numbers": (
        lambda x: x + tf.random.uniform((2,), seed=1),
        f"{OP} draws random numbers by 'RandomUniform'",
    ),
}


class TestReasons:
    @pytest.mark.parametrize("case", REASONS)
    def test_are_warned_of_once_and_in_traces(self, case: str) -> None:
        fn, reason = REASONS[case]
        value = np.float32([1.0, 2.0])
        network = of(fn)
        with warned() as texts:
            found = [run(network, value), run(network, value)]
        (fallback,) = fallbacks(network)
        assert fallback is not None
        assert reason in fallback
        assert len(texts) == 1
        assert fallback in texts[0]
        if case != "random numbers":
            wanted = run(of(fn, compile=False), value, eager=True)
            np.testing.assert_allclose(found[0], wanted)
            np.testing.assert_allclose(found[1], wanted)

    def test_random_numbers_that_are_to_be_those_of_the_graph(self) -> None:
        def draw(x: Any) -> Any:
            return x + tf.random.stateless_truncated_normal((2,), [1, 2])

        network = of(draw, compile=CompileOptions(fallback_random=True))
        value = np.float32([1, 2])
        with warned():
            found = run(network, value)
        np.testing.assert_array_equal(found, run(of(draw, compile=False), value))
        (reason,) = fallbacks(network)
        assert reason is not None
        assert "fallback_random" in reason

    def test_a_first_step_that_fails_as_a_graph(self) -> None:
        network, plain, ours, _ = pair(mlp, "sgd", supervised)
        fine, *_ = batches(1)
        wrong = {**fine, "t": fine["t"] + 3}
        before = weights(ours)
        for one in (network, plain):
            with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                train(one, [wrong])
            assert "CrossEntropy (op 1" in caught.value.__notes__[0]
        np.testing.assert_equal(weights(ours), before)
        train(network, [fine])
        assert network.traces[-1].compile_seconds > 0


def test_strings_in_a_batch() -> None:
    network = of(tf.strings.length)
    with warned():
        assert run(network, ["ab", "c"]).tolist() == [2, 1]
    assert fallbacks(network) == ["an op reads strings, which XLA does not have"]


class Scale(TensorOp):
    """Multiplies by a number, which is a constant of a graph."""

    def __init__(self, factor: float) -> None:
        super().__init__("x", "y")
        self.factor = factor

    def forward(self, data: Any, state: Any) -> Any:
        return data * self.factor


class Huge(TensorOp):
    """Casts numbers that do not fit into an int, which XLA does otherwise than a graph."""

    def __init__(self) -> None:
        super().__init__("x", "y")
        self.total = tf.Variable(tf.zeros((2,), tf.int32))

    def forward(self, data: Any, state: Any) -> Any:
        self.total.assign_add(tf.cast(data, "int32"))
        return data * 2


class TestVerification:
    @pytest.mark.parametrize(
        ("fn", "number"),
        [
            (lambda x: tf.cast(x, "int32"), 1e20),
            (lambda x: tf.reduce_max(x), math.nan),
            (lambda x: tf.gradients(tf.sqrt(x) * 0.0, x)[0], 0.0),  # NaN in XLA only
        ],
    )
    def test_of_a_result(self, fn: Callable[[Any], Any], number: float) -> None:
        network, value = of(fn), np.float32([number, 1.0])
        with warned() as texts:
            found = [run(network, value) for _ in range(2)]
        wanted = run(of(fn, compile=False), value)
        np.testing.assert_array_equal(found, [wanted, wanted])
        (reason,) = fallbacks(network)
        assert "the compiled step computes other values of 'y' than the graph" in str(reason)
        assert len(texts) == 1

    def test_of_a_variable(self) -> None:
        ops = [Huge(), Huge()]
        networks = [TFNetwork(op, compile=place == 0) for place, op in enumerate(ops)]
        with warned() as texts:
            for _ in range(2):
                for network in networks:
                    run(network, np.float32([1e20, 1.0]))
        np.testing.assert_array_equal(ops[0].total, ops[1].total)
        assert "of variable 'Variable" in texts[0]

    def test_rounding_errors_that_an_optimizer_enlarges(self) -> None:
        def normed() -> Any:
            # The gradient of the bias is 0 but for rounding, of which Adam makes a whole step.
            return keras.Sequential(
                [
                    layers.Input((6,)),
                    layers.Dense(8),
                    layers.BatchNormalization(),
                    layers.Dense(3),
                ]
            )

        network, *_ = pair(normed, "adam", supervised)
        train(network, batches(2))
        assert is_compiled(network)

    def test_of_every_other_step(self) -> None:
        network = of(lambda x: tf.cast(x, "int32"), compile=CompileOptions(verify=2))
        with network("infer", 1):
            for value in (1.0, 1e20):
                network.run_step({"x": tf.constant([value])})
            with pytest.raises(RuntimeError, match="'y'"):
                network.run_step({"x": tf.constant([1e20])})

    def test_not_at_all(self) -> None:
        network = of(lambda x: tf.cast(x, "int32"), compile=CompileOptions(verify=None))
        assert run(network, np.float32([1.0])).tolist() == [1]
        run(network, np.float32([1e20]))
        assert is_compiled(network)


class TestSignatures:
    def test_there_are_so_many_at_the_most(self) -> None:
        network = of(lambda x: x * 2, compile=CompileOptions(max_programs=3))
        with warned() as texts:
            for size in (1, 2, 3, 4, 5, 4, 1, 2):
                assert run(network, np.ones(size, "float32")).tolist() == [2.0] * size
        assert fallbacks(network) == [
            None,
            None,
            None,
            "there are more than 3 input signatures, most recently because 'x' has the shape (4), "
            "where (3) was traced",
        ]
        # The graph of the first batch that is not compiled is for any size.
        assert [trace.reason for trace in network.traces[2:]] == [
            "'x' has the shape (3), where (2) was traced",
            f"'x' has the shape (4), where (3) was traced{FITS}",
        ]
        assert len(texts) == 1

    def test_number_of_compilations_is_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(program_set, "MAX_COMPILATIONS", 2)
        network = of(lambda x: x * 2, compile=True)
        for size in (1, 2, 3):
            assert run(network, np.ones(size, "float32")).tolist() == [2.0] * size
        assert fallbacks(network) == [
            None,
            None,
            "2 programs have been compiled for these ops, most recently because 'x' has the shape "
            "(3), where (2) was traced",
        ]

    def test_ragged_values_of_other_lengths_are_compiled_apart(self) -> None:
        network = of(lambda x: x * 2, compile=CompileOptions(max_programs=3))
        for rows in ([[1.0], [2.0, 3.0]], [[1.0, 2.0], [3.0]], [[1.0, 2.0, 3.0], [4.0]]):
            with network("infer", 1):
                result = network.run_step({"x": tf.ragged.constant(rows)})["y"]
            assert result.to_list() == [[2 * one for one in row] for row in rows]
        # Two values of two rows and three entries share a program.
        assert fallbacks(network) == [None, None]
        assert is_compiled(network)

    def test_many_lengths_are_advised_to_be_padded(self) -> None:
        network = of(lambda x: x * 2, compile=CompileOptions(max_programs=10))
        with network("infer", 1):
            for width in range(1, 8):
                network.run_step({"x": tf.ones((2, width))})
            with pytest.warns(UserWarning, match="traced 8 times") as caught:
                network.run_step({"x": tf.ones((2, 8))})
        text = str(caught[0].message)
        assert "pad batches to fewer shapes" in text
        assert "dynamic" not in text

    def test_changes_that_fail_leave_compiling_on(self) -> None:
        op = Scale(1.0)
        network = TFNetwork(op, compile=True)
        assert run(network, np.ones(2, "float32")).tolist() == [1, 1]
        op.factor = "nothing"  # type: ignore[assignment]
        for _ in range(6):
            with pytest.raises(Exception, match="nothing"):
                run(network, np.ones(2, "float32"))
        op.factor = 2.0
        assert run(network, np.ones(2, "float32")).tolist() == [2, 2]
        assert is_compiled(network)

    def test_change_in_each_step_ends_compiling(self) -> None:
        op = Scale(1.0)
        network = TFNetwork(op, compile=True)
        factors = [float(number) for number in range(1, 10)]
        with warned() as texts:
            for factor in factors:
                op.factor = factor
                assert run(network, np.ones(2, "float32")).tolist() == [factor] * 2
        assert fallbacks(network)[:5] == [None] * 5
        assert set(fallbacks(network)[5:]) == {
            "something changes in each step: op 0 (Scale).factor has changed"
        }
        assert len(texts) == 1


@pytest.mark.parametrize("verify", ["first", None, 3])
def test_step_that_is_slower_than_the_graph_is_warned_of_once(
    verify: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = np.ones(2, "float32")
    for ratio, expected in ((0.0, 1), (math.inf, 0)):
        monkeypatch.setattr(step_times, "_MIN_RATIO", ratio)
        network = of(lambda x: x * 2, compile=CompileOptions(verify=verify))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with network("infer", 1):
                results = [network.run_step({"x": tf.constant(value)}) for _ in range(60)]
        assert all(result["y"].numpy().tolist() == [2.0, 2.0] for result in results)
        texts = [str(one.message) for one in caught if "compiled step takes" in str(one.message)]
        assert len(texts) == expected
        assert all("one that runs as a graph" in text for text in texts)
        # Entered with eager=True, the step would run operation by operation, not as the graph.
        assert all("eager=True" not in text for text in texts)
        assert is_compiled(network)


class TestAround:
    def test_copies_and_pickles_keep_it(self) -> None:
        model = fastnet.build(line, None, model_name="model")
        network = TFNetwork(ModelOp(model, "x", "y"), compile=CompileOptions(max_programs=1))
        for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
            with warned():
                for size in (1, 2):
                    run(other, [[1.0, 2.0]] * size)
            first, second = fallbacks(other)
            assert first is None
            assert str(second).startswith("there are more than 1 input signatures")
