"""What XLA cannot compile, or would run to another end, runs as a graph, with the reason."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet import CompileOptions
from fastnet.network import Network, TFNetwork
from fastnet.network.tf.compiled import step
from fastnet.network.tf.compiled.vocabulary import SAME
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp
from tests.network.keras_models import (
    KERAS_3,
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
    ENDING,
    assert_same_results,
    assert_same_weights,
    fallbacks,
    in_step,
    is_compiled,
    pair,
    warned,
)

pytestmark = pytest.mark.tf

OP = "LambdaOp (op 0, inputs ['x'], outputs ['y'])"
UNKNOWN = ", which XLA cannot compile, or is not known to run as the graph does"


def of(fn: Callable[[Any], Any], **options: Any) -> TFNetwork:
    quiet = tf.autograph.experimental.do_not_convert(fn)
    return TFNetwork(LambdaOp(quiet, "x", "y"), **{"compile": True, **options})


def run(network: TFNetwork, value: Any, **opening: Any) -> Any:
    with network(**{"mode": "infer", "epoch": 1, **opening}):
        return np.asarray(network.run_step({"x": tf.constant(value)})["y"])


ITEMS = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [3, 4]), -1)
ANY = tf.Variable([1.0, 2.0], shape=[None])
NOISE = tf.random.Generator.from_seed(1)
NUMBER = f"uses '{{}}'{UNKNOWN}"


def asked_for() -> Any:
    if tf.executing_eagerly():
        return 2.0
    return tf.compat.v1.get_default_graph().capture_call_time_value(
        lambda: tf.constant(2.0), tf.TensorSpec((), tf.float32)
    )


REASONS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "strings": (
        lambda x: tf.strings.length(tf.strings.as_string(x)),
        f"{OP} {NUMBER.format('AsString')}",
    ),
    "a print": (
        lambda x: [tf.print("seen"), x + 1][1],
        f"{OP} {NUMBER.format('StringFormat')}",
    ),
    "Python": (
        lambda x: tf.py_function(lambda y: y + 1, [x], tf.float32),
        f"{OP} calls Python in each step ('EagerPyFunc')",
    ),
    "numpy": (
        lambda x: tf.numpy_function(lambda y: y + 1, [x], tf.float32),
        f"{OP} calls Python in each step ('PyFunc')",
    ),
    "shapes of values": (lambda x: tf.where(x > 1), f"{OP} {NUMBER.format('Where')}"),
    "different values": (lambda x: tf.unique(x)[0], f"{OP} {NUMBER.format('Unique')}"),
    "a sort": (lambda x: tf.sort(x), f"{OP} {NUMBER.format('TopKV2')}"),
    "indices in rows": (
        lambda x: tf.gather_nd(x, [[1], [0]]),
        f"{OP} {NUMBER.format('GatherNd')}",
    ),
    "random numbers": (
        lambda x: x + tf.random.uniform((2,), seed=1),
        f"{OP} draws random numbers by 'RandomUniform', whose seed does not count when it is "
        "compiled",
    ),
    "a place that is worked out": (
        lambda x: x[tf.cast(x[0], "int32") :],
        f"{OP} takes a piece ('StridedSlice') at a place that it works out of values; one outside "
        "is no error when it is compiled",
    ),
    "a variable of any shape": (
        lambda x: x + ANY,
        "the variable 'op0_LambdaOp/add/ReadVariableOp/resource' may have any shape",
    ),
    "an index in a loop": (
        lambda x: tf.while_loop(
            lambda i, y: i < 3, lambda i, y: (i + 1, y + tf.gather(x, i % 2)), [0, x]
        )[1],
        f"{OP} uses 'FloorMod' in a condition, a loop or a function of its own, where what it "
        "refuses is not seen when it is compiled",
    ),
    "an assertion": (
        lambda x: [tf.debugging.assert_positive(x), x * 2][1],
        f"{OP} uses 'Assert' in a condition, a loop or a function of its own, where what it "
        "refuses is not seen when it is compiled",
    ),
    "a value that is asked for in each step": (
        lambda x: x * asked_for(),
        "the step reads what is only found when it is called",
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
        assert fallbacks(network) == [reason]
        assert texts == [
            "Steps of mode 'infer' run as a graph, and not as one compiled program: "
            f"{reason}{ENDING}"
        ]
        assert [trace.compile_seconds for trace in network.traces] == [0.0]
        if case != "random numbers":
            wanted = run(of(fn, compile=False), value, eager=True)
            np.testing.assert_allclose(found[0], wanted)
            np.testing.assert_allclose(found[1], wanted)

    def test_a_table(self) -> None:
        network = of(lambda x: ITEMS.lookup(x))
        with warned() as texts:
            assert run(network, [1, 2, 3]).tolist() == [3, 4, -1]
        assert len(texts) == 1
        (reason,) = fallbacks(network)
        assert reason is not None
        assert reason.endswith("a table, an iterator or the like, which is no variable")

    def test_a_generator_of_the_programs(self) -> None:
        network = of(lambda x: x + NOISE.normal((2,)))
        with warned() as texts:
            first, second = (run(network, [1.0, 2.0]) for _ in range(2))
        assert len(texts) == 1
        assert not np.array_equal(first, second)

    def test_random_numbers_that_are_to_be_those_of_the_graph(self) -> None:
        def draw(x: Any) -> Any:
            return x + tf.random.stateless_uniform((2,), [1, 2])

        network = of(draw, compile=CompileOptions(fallback_random=True))
        value = np.float32([1, 2])
        with warned():
            found = run(network, value)
        np.testing.assert_array_equal(found, run(of(draw, compile=False), value))
        (reason,) = fallbacks(network)
        assert reason is not None
        assert reason.endswith(
            "which are other ones when it is compiled, and fallback_random asks for the same"
        )
        compiled = of(draw)
        run(compiled, value)
        assert is_compiled(compiled)

    def test_a_failure_of_the_compiler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # of what XLA has no kernel for, said to have one
        wrong = frozenset({*SAME, "AsString", "StringToNumber"})
        monkeypatch.setattr("fastnet.network.tf.compiled.reading.SAME", wrong)
        network = of(lambda x: tf.strings.to_number(tf.strings.as_string(x)))
        with warned() as texts:
            assert [run(network, [1.0, 2.0]).tolist() for _ in range(3)] == [[1.0, 2.0]] * 3
        (reason,) = fallbacks(network)
        assert reason is not None
        assert reason.startswith("XLA has failed with ")
        assert "AsString" in reason
        assert len(texts) == 1
        assert network.traces[0].compile_seconds > 0

    def test_a_first_step_that_fails_as_it_did_before(self) -> None:
        network, plain, ours, _ = pair(mlp, "sgd", supervised)
        fine, *_ = batches(1)
        wrong = {**fine, "t": fine["t"] + 3}
        before = weights(ours)
        texts = []
        for one in (network, plain):
            with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                train(one, [wrong])
            texts.append((str(caught.value).partition("{{")[0], caught.value.__notes__))
        assert texts[0] == texts[1]
        np.testing.assert_equal(weights(ours), before)


class TestKinds:
    def test_there_are_so_many_at_the_most(self) -> None:
        network = of(lambda x: x * 2, compile=CompileOptions(most_kinds=3))
        with warned() as texts:
            for size in (1, 2, 3, 4, 5, 4, 1, 2):
                assert run(network, np.ones(size, "float32")).tolist() == [2.0] * size
        limit = "there are more than 3 kinds of steps"
        assert fallbacks(network) == [None, None, None, limit, limit]
        assert [trace.reason for trace in network.traces[2:]] == [
            "a batch has the shapes (3,)",
            "a batch has the shapes (4,)",
            "a batch has the shapes (5,)",
        ]
        assert len(texts) == 1

    def test_of_shapes_that_are_traced_by_themselves(self) -> None:
        network = of(lambda x: x * 2, compile=CompileOptions(most_kinds=1))
        with warned():
            for size in (1, 2):
                run(network, np.ones((1, size), "float32"))
        assert fallbacks(network) == [None, "there are more than 1 kinds of steps"]

    def test_there_are_so_many_programs_at_the_most(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(step, "_MOST_PROGRAMS", 2)

        class Scale(TensorOp):
            factor = 1.0

            def forward(self, data: Any, state: Any) -> Any:
                return data * self.factor

        op = Scale("x", "y")
        network = TFNetwork(op, compile=True)
        with warned():
            for factor in (1.0, 2.0, 3.0):
                op.factor = factor
                assert run(network, [1.0]).tolist() == [factor]
        last = "2 programs were compiled for what is run in this mode"
        assert fallbacks(network) == [None, None, last]


class TestAround:
    def test_an_opening_without_it(self) -> None:
        network = of(lambda x: x * 2)
        assert run(network, [1.0], eager=True).tolist() == [2.0]
        assert network.traces == ()

    def test_without_it_nothing_is_compiled(self) -> None:
        network = of(lambda x: x * 2, compile=False)
        run(network, [1.0])
        assert [(one.compile_seconds, one.fallback) for one in network.traces] == [(0.0, None)]

    def test_a_tape_of_the_programs(self) -> None:
        network = of(lambda x: x * x)
        x = tf.constant([3.0])
        with network("infer", 1):
            for _ in range(3):
                network.run_step({"x": x})
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = network.run_step({"x": x})["y"]
                assert tape.gradient(y, x).numpy().tolist() == [6.0]

    def test_a_function_of_the_programs(self) -> None:
        network = of(lambda x: x * x)
        with network("infer", 1):
            network.run_step({"x": tf.constant([3.0])})
            outer = tf.function(lambda x: network.run_step({"x": x})["y"] + 1, autograph=False)
            assert outer(tf.constant([3.0])).numpy().tolist() == [10.0]

    def test_copies_and_pickles_keep_it(self) -> None:
        model = fastnet.build(line, None, model_name="model")
        network = TFNetwork(ModelOp(model, "x", "y"), compile=CompileOptions(most_kinds=2))
        for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
            run(other, [[1.0, 2.0]])
            assert is_compiled(other)
            assert other._options == CompileOptions(most_kinds=2)

    def test_the_function_that_chooses_a_network(self) -> None:
        model = fastnet.build(line, None, model_name="model")
        network = Network(ModelOp(model, "x", "y"), compile=True)
        run(network, [[1.0, 2.0]])
        assert is_compiled(network)

    def test_transform(self) -> None:
        network = of(lambda x: x * 2)
        run(network, [1.0, 2.0])
        result = network.transform({"x": np.float32([3.0, 4.0])}, mode="infer")
        assert np.asarray(result["y"]).tolist() == [6.0, 8.0]


def test_another_compiler() -> None:
    for options, kind in ((CompileOptions(backend="inductor"), ValueError), ("yes", TypeError)):
        with pytest.raises(kind):
            TFNetwork([LambdaOp(lambda x: x, "x", "y")], compile=options)
    TFNetwork([LambdaOp(lambda x: x, "x", "y")], compile=CompileOptions(backend="xla"))


@pytest.mark.skipif(KERAS_3, reason="Keras 3 draws by seeds")
def test_dropout_of_keras_2_runs_as_a_graph() -> None:
    model = fastnet.build(
        lambda: keras.Sequential([layers.Input((6,)), layers.Dropout(0.5)]),
        None,
        model_name="model",
    )
    network = TFNetwork(ModelOp(model, "x", "y"), compile=True)
    with warned() as texts:
        train(network, [{"x": tf.ones((4, 6))}])
    assert "ModelOp (op 0" in texts[0]
    assert "draws random numbers by 'RandomUniform'" in texts[0]
    train(network, [{"x": tf.ones((4, 6))}], mode="infer")
    assert network.traces[-1].fallback is None


def test_an_embedding() -> None:
    def embedded() -> Any:
        return keras.Sequential(
            [
                layers.Input((2,), dtype="int32"),
                layers.Embedding(5, 3),
                layers.Flatten(),
                layers.Dense(3),
            ]
        )

    data = [{"x": tf.constant([[0, 4]] * 4), "t": tf.constant([0, 1, 2, 0])}]
    with warned():
        network, plain, ours, other = pair(embedded, "sgd", supervised)
        in_step(network, plain, data * 5)
        in_step(network, plain, data, mode="infer")
    assert_same_weights(ours, other)
    assert network.traces[-1].fallback is None
    with network("infer", 1), pytest.raises(tf.errors.InvalidArgumentError, match="5 is not in"):
        network.run_step({"x": tf.constant([[0, 5]] * 4)})
    with network("infer", 1):
        assert_same_results(network.run_step(data[0]), network.run_step(data[0]))
