"""Compiled steps on several devices, beside the graph's, and beside one device by hand."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet import CompileOptions
from fastnet.backend import set_lr
from fastnet.network import TFNetwork
from fastnet.network.tf.compiled import spread
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.model import EMA, ModelOp, UpdateOp
from tests.network.tf.compiled.steps import CallingPython
from tests.network.tf.replicas.devices import (
    DEVICES,
    KERAS_3,
    assert_same_weights,
    copies_of,
    halves,
    keras,
    under,
)
from tests.network.tf.replicas.programs import (
    STEPS,
    adam,
    by_hand,
    mlp,
    momentum,
    regression,
    same_model,
)

pytestmark = [pytest.mark.tf, pytest.mark.slow, pytest.mark.own_process]

# of one size, each of which has programs of its own
ALIKE = STEPS[:2] * 2
SPREAD = "the steps are spread over devices by a strategy"


@pytest.fixture
def programs_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have XLA compile also what a graph does as soon, such as updates."""
    monkeypatch.setattr(spread, "_LEAST_PER_TENSOR", 0)


def replica() -> int:
    context = tf.distribute.get_replica_context()
    return int(tf.get_static_value(context.replica_id_in_sync_group))


def double(*between: Any) -> Any:
    """Make a model of float64, in which rounding is all that differs."""
    dense = [
        keras.layers.Dense(4, activation="tanh", dtype="float64"),
        *between,
        keras.layers.Dense(2, use_bias=False, dtype="float64"),
    ]
    return keras.Sequential([keras.layers.Input((3,), dtype="float64"), *dense])


def curve(x: Any) -> Any:
    for _ in range(6):
        x = tf.tanh(x) + 0.1 * tf.sin(x)
    return x


def curved(model: Any, *between: Any) -> list[Any]:
    """Return the ops of a regression in which a device has enough to do for a program."""
    return [
        ModelOp(model, "x", "y_pred"),
        LambdaOp(curve, "y_pred", "y_pred"),
        *between,
        MeanSquaredError(("y_pred", "y"), "loss"),
        UpdateOp(model, "loss"),
    ]


def batch_of(x: Any, y: Any, dtype: str = "float64") -> dict[str, Any]:
    return {"x": halves(x.astype(dtype)), "y": halves(y.astype(dtype))}


def pair(
    make: Callable[[], Any], optimizer: Any, ops: Callable[[Any], Any], **options: Any
) -> tuple[TFNetwork, TFNetwork, Any, Any]:
    """Return a compiled network and one that is not, of models of equal weights."""
    ours = fastnet.build(make, optimizer, model_name="ours")
    other = fastnet.build(make, optimizer, model_name="other")
    for one, two in zip(other.weights, ours.weights, strict=True):
        one.assign(copies_of(two)[0])
    compiled = TFNetwork(ops(ours), **{"compile": True, **options})
    return compiled, TFNetwork(ops(other)), ours, other


def in_step(
    compiled: TFNetwork,
    plain: TFNetwork,
    batches: Sequence[dict[str, Any]],
    mode: str = "train",
    rtol: float = 1e-8,
) -> list[dict[str, Any]]:
    """Run both networks batch by batch, and compare their results."""
    results = []
    with quietly(), compiled(mode, 1), plain(mode, 1):
        for batch in batches:
            found, wanted = compiled.run_step(batch), plain.run_step(batch)
            assert found.keys() == wanted.keys()
            for key, value in wanted.items():
                np.testing.assert_allclose(found[key], value, rtol, rtol / 10, err_msg=key)
            results.append(found)
    return results


def assert_same_copies(one: Any, other: Any, rtol: float = 1e-8) -> None:
    """Compare all copies of the weights of two models."""
    for mine, yours in zip(one.weights, other.weights, strict=True):
        for own, wanted in zip(copies_of(mine), copies_of(yours), strict=True):
            np.testing.assert_allclose(own, wanted, rtol, rtol / 10)


@contextmanager
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*one compiled program.*")
        yield


def programs_of(network: TFNetwork) -> list[str]:
    """Return what was compiled."""
    return [trace.part for trace in network.traces if trace.part is not None]


class TestFloats:
    @pytest.mark.parametrize("optimizer", [momentum, adam])
    def test_are_those_of_the_graph_and_of_one_device(self, two: None, optimizer: Any) -> None:
        model = fastnet.build(mlp, optimizer)
        twin = same_model(model, mlp)
        network = TFNetwork(curved(model), compile=True)
        with pytest.warns(UserWarning, match="by a strategy") as told, network("train", 1):
            losses = [float(network.run_step(batch_of(*step, "float32"))["loss"]) for step in STEPS]
        # Keras 2 works at each variable of Adam's by more operations
        count = 4 if optimizer is adam and not KERAS_3 else 2
        reason = f"{SPREAD}; what each does by itself is compiled, as {count} programs"
        assert [str(one.message) for one in told if "compiled" in str(one.message)] == [
            f"Steps of mode 'train' run as a graph, and not as one compiled program: {reason}. "
            "network.traces tells of all such reasons; open the network with eager=True, or make "
            "it without `compile`, to have no such warning."
        ]
        # a first size, and others
        assert programs_of(network) == [f"{count} programs"] * 3
        assert {trace.fallback for trace in network.traces} == {None, reason}

        def loss_of(x: Any, y: Any) -> Any:
            return tf.reduce_mean((curve(twin(x, training=True)) - y) ** 2)

        with under(None):
            expected = by_hand(twin, optimizer(), loss_of, STEPS)
        np.testing.assert_allclose(losses, expected, rtol=1e-4)
        assert_same_weights(model, twin)


class TestSteps:
    @pytest.mark.parametrize("optimizer", [momentum, adam])
    def test_with_programs_of_updates(
        self, two: None, programs_of_all: None, optimizer: Any
    ) -> None:
        def make() -> Any:
            inner = [keras.layers.Dense(3, activation="tanh", dtype="float64") for _ in range(5)]
            return double(*inner)

        compiled, plain, ours, other = pair(make, optimizer, regression)
        in_step(compiled, plain, [batch_of(*step) for step in ALIKE * 4])
        assert programs_of(compiled)[0] in ("4 programs", "6 programs")
        assert_same_copies(ours, other)

    def test_too_little_to_do_is_a_graph(self, two: None) -> None:
        compiled, plain, *_ = pair(double, momentum, regression)
        in_step(compiled, plain, [batch_of(*step) for step in STEPS], "infer")
        assert {trace.fallback for trace in compiled.traces} == {
            f"{SPREAD}, and between their meetings no device has enough to do for a program"
        }

    def test_in_all_modes(self, two: None) -> None:
        compiled, plain, ours, other = pair(double, momentum, curved)
        data = [batch_of(*step) for step in STEPS[1:3]]
        for mode in ("train", "eval", "infer", "train"):
            in_step(compiled, plain, data, mode)
        assert_same_copies(ours, other)
        # of each mode for its first size and another
        assert programs_of(compiled) == ["2 programs"] * 6

    @pytest.mark.parametrize(
        "reduction",
        ["ReductionToOneDevice", "HierarchicalCopyAllReduce"],
    )
    def test_with_other_reductions(self, programs_of_all: None, reduction: str) -> None:
        ways = getattr(tf.distribute, reduction)()
        strategy = tf.distribute.MirroredStrategy(DEVICES, cross_device_ops=ways)
        with under(strategy):
            compiled, plain, ours, other = pair(double, adam, curved)
            batches = []
            for x, y in ALIKE * 2:
                spread_out = strategy.experimental_distribute_values_from_function
                split = [np.array_split(one.astype("float64"), 2) for one in (x, y)]
                batches.append(
                    {
                        key: spread_out(
                            lambda context, of=of: tf.constant(of[context.replica_id_in_sync_group])
                        )
                        for key, of in zip(("x", "y"), split, strict=True)
                    }
                )
            in_step(compiled, plain, batches)
            assert programs_of(compiled)
            assert_same_copies(ours, other)

    def test_of_one_device_are_one_program(self) -> None:
        with under(tf.distribute.MirroredStrategy(DEVICES[:1])):
            compiled, plain, ours, other = pair(double, momentum, regression)
            in_step(
                compiled,
                plain,
                [{"x": x.astype("float64"), "y": y.astype("float64")} for x, y in ALIKE],
            )
            assert {trace.fallback for trace in compiled.traces} == {None}
            assert_same_copies(ours, other)


class Positive(TensorOp):
    """Asserts that a value is below a bound."""

    def forward(self, data: Any, state: Any) -> Any:
        tf.debugging.assert_less(data, tf.cast(50, data.dtype), "too large")
        return data


class TestParts:
    def test_python_runs_once_a_step_on_each_device(self, two: None, programs_of_all: None) -> None:
        ops: list[CallingPython] = []

        def make(model: Any) -> list[Any]:
            ops.append(CallingPython("y_pred", "y_pred"))
            return curved(model, ops[-1])

        compiled, plain, ours, other = pair(double, momentum, make)
        in_step(compiled, plain, [batch_of(*step) for step in ALIKE])
        found, wanted = (sorted(map(np.sum, one.seen)) for one in ops)
        assert len(found) == 2 * len(ALIKE)
        np.testing.assert_allclose(found, wanted)
        assert programs_of(compiled)[0] in ("2 programs", "4 programs")
        assert_same_copies(ours, other)

    def test_what_xla_cannot_do_is_a_graph(self, two: None, programs_of_all: None) -> None:
        compiled, plain, ours, other = pair(
            double, momentum, lambda model: curved(model, LambdaOp(tf.sort, "y_pred", "y_pred"))
        )
        in_step(compiled, plain, [batch_of(*step) for step in ALIKE])
        # before it and after it at least, by versions of Keras
        assert programs_of(compiled)[0] in ("4 programs", "6 programs", "8 programs")
        assert_same_copies(ours, other)

    def test_values_that_xla_treats_otherwise(self, two: None) -> None:
        def pick(y: Any) -> Any:
            return tf.maximum(y, -1.0)

        compiled, plain, ours, other = pair(
            double, momentum, lambda model: curved(model, LambdaOp(pick, "y_pred", "y_pred"))
        )
        x, y = STEPS[0]
        strange = x.copy()
        strange[0, 0] = np.nan
        in_step(compiled, plain, [batch_of(x, y)] * 2)
        assert_same_copies(ours, other)
        told = len(compiled.traces)
        with quietly(), compiled("eval", 1), plain("eval", 1):
            for one in (x, strange, x):
                found, wanted = (net.run_step(batch_of(one, y)) for net in (compiled, plain))
                np.testing.assert_array_equal(np.isnan(found["y_pred"]), np.isnan(wanted["y_pred"]))
        assert [trace.reason for trace in compiled.traces[told:]][-1] == "a step has run twice"
        assert "NaN" in str(compiled.traces[-1].fallback)

    def test_an_assertion_names_its_op_and_changes_nothing(self, two: None) -> None:
        compiled, plain, ours, other = pair(
            double, momentum, lambda model: curved(model, Positive("x", "x2"))
        )
        x, y = STEPS[0]
        large = x.copy()
        large[-1] = 100
        in_step(compiled, plain, [batch_of(x, y)] * 2)
        # what a graph has written to by then is a matter of chance
        with quietly(), compiled("train", 1):
            for _ in range(10):
                with pytest.raises(tf.errors.InvalidArgumentError, match="too large") as caught:
                    compiled.run_step(batch_of(large, y))
                assert any("Positive" in note for note in caught.value.__notes__)
        assert_same_copies(ours, other)
        in_step(compiled, plain, [batch_of(x, y)] * 2)
        assert_same_copies(ours, other)

    def test_numbers_of_the_graphs_own_generators(self, two: None) -> None:
        def noisy(x: Any) -> Any:
            return x + tf.random.normal(tf.shape(x), seed=1, dtype=x.dtype)

        def make(model: Any) -> list[Any]:
            return curved(model, LambdaOp(noisy, "y_pred", "z"))

        options = CompileOptions(fallback_random=True)
        compiled, plain, ours, other = pair(double, momentum, make, compile=options)
        with quietly(), compiled("train", 1):
            compiled.run_step(batch_of(*STEPS[0]))
        assert programs_of(compiled) == []
        compiled, plain, ours, other = pair(double, momentum, make)
        with quietly(), compiled("train", 1), plain("train", 1):
            drawn = [compiled.run_step(batch_of(*STEPS[0]))["z"] for _ in range(3)]
            for _ in range(3):
                plain.run_step(batch_of(*STEPS[0]))
        assert programs_of(compiled)
        assert not np.allclose(drawn[0], drawn[1])
        assert_same_copies(ours, other)


class Counting(TensorOp):
    """Has Python note a count, and only then adds one to it."""

    def __init__(self, inputs: str, outputs: str) -> None:
        super().__init__(inputs, outputs)
        self.seen: list[float] = []

    def noted(self, count: Any) -> Any:
        def note() -> Any:
            # what does not wait would be first
            time.sleep(0.1)
            self.seen.append(float(count.numpy()[0]))
            return np.float32(0)

        return tf.control_dependencies([tf.py_function(note, [], tf.float32)])


class CountingOwn(Counting):
    """Counts on each device by itself."""

    def __init__(self, inputs: str, outputs: str) -> None:
        super().__init__(inputs, outputs)
        self.count = tf.Variable(
            tf.constant([0.0]), trainable=False, synchronization=tf.VariableSynchronization.ON_READ
        )

    def forward(self, data: Any, state: Any) -> Any:
        count = self.count.values[replica()]
        with self.noted(count):
            count.assign_add([1.0])
        return data


class CountingElsewhere(Counting):
    """Counts by one device on the other; all that waits for Python is a constant."""

    def __init__(self, inputs: str, outputs: str) -> None:
        super().__init__(inputs, outputs)
        with under(None), tf.device(DEVICES[0]):
            self.count = tf.Variable(tf.constant([0.0]), trainable=False)

    def forward(self, data: Any, state: Any) -> Any:
        if replica() == 1:
            with self.noted(self.count):
                one = tf.constant([1.0])
            tf.raw_ops.ResourceScatterAdd(resource=self.count.handle, indices=[0], updates=one)
        return data


class TestWaits:
    @pytest.mark.parametrize("kind", [CountingOwn, CountingElsewhere])
    def test_a_write_waits_for_python(self, two: None, kind: type[Counting]) -> None:
        ops: list[Counting] = []

        def make(model: Any) -> list[Any]:
            ops.append(kind("x", "x"))
            return [ops[-1], *curved(model)]

        compiled, plain, *_ = pair(double, momentum, make)
        in_step(compiled, plain, [batch_of(*step) for step in ALIKE])
        assert programs_of(compiled)
        each = 2 if kind is CountingOwn else 1
        wanted = [float(step) for step in range(len(ALIKE)) for _ in range(each)]
        assert [op.seen for op in ops] == [wanted, wanted]

    @pytest.mark.parametrize(
        ("rows", "kind"),
        # what a device has of statistics is its own
        [([0, -1], "normed"), ([0], "plain"), ([-1], "plain")],
        ids=["both", "first", "second"],
    )
    def test_a_step_that_raises_in_python_changes_nothing(
        self, two: None, rows: list[int], kind: str
    ) -> None:
        def look(x: Any) -> Any:
            time.sleep(0.1)
            if np.max(x.numpy()) > 50:
                raise ValueError("too large")
            return x.numpy()

        def make(model: Any) -> list[Any]:
            looking = LambdaOp(lambda x: tf.py_function(look, [x], x.dtype), "x", "x2")
            return [looking, *curved(model)]

        compiled, plain, ours, other = pair(normed if kind == "normed" else double, momentum, make)
        x, y = STEPS[0]
        large = x.copy()
        large[rows] = 100
        in_step(compiled, plain, [batch_of(x, y)] * 2)
        with quietly(), compiled("train", 1):
            for _ in range(3):
                with pytest.raises(tf.errors.OpError, match="too large"):
                    compiled.run_step(batch_of(large, y))
        assert_same_copies(ours, other)
        in_step(compiled, plain, [batch_of(x, y)] * 2)
        assert_same_copies(ours, other)

    def test_what_was_said_of_a_shape(self, two: None) -> None:
        def known(x: Any) -> Any:
            result = tf.py_function(np.asarray, [x], x.dtype)
            result.set_shape(x.shape)
            return result

        compiled, plain, ours, other = pair(
            double, momentum, lambda model: [LambdaOp(known, "x", "x"), *curved(model)]
        )
        in_step(compiled, plain, [batch_of(*step) for step in ALIKE])
        assert programs_of(compiled) == ["2 programs"]
        assert_same_copies(ours, other)


def normed(**settings: Any) -> Any:
    return double(keras.layers.BatchNormalization(dtype="float64", **settings))


class TestModels:
    def test_statistics_of_batches(self, two: None, programs_of_all: None) -> None:
        compiled, plain, ours, other = pair(normed, momentum, curved)
        for mode in ("train", "eval", "train"):
            in_step(compiled, plain, [batch_of(*step) for step in ALIKE], mode)
        assert_same_copies(ours, other)

    @pytest.mark.skipif(not KERAS_3, reason="a layer of Keras 3")
    def test_statistics_of_all_devices(self, two: None) -> None:
        compiled, plain, ours, other = pair(lambda: normed(synchronized=True), momentum, curved)
        in_step(compiled, plain, [batch_of(*step) for step in ALIKE])
        assert_same_copies(ours, other)

    def test_averages_of_weights(self, two: None, programs_of_all: None) -> None:
        def make(model: Any) -> list[Any]:
            averages.append(EMA(model, decay=0.5))
            return [*curved(model), averages[-1]]

        averages: list[EMA] = []
        compiled, plain, ours, other = pair(double, momentum, make)
        in_step(compiled, plain, [batch_of(*step) for step in ALIKE])
        assert_same_copies(*(one.averaged for one in averages))
        assert_same_copies(ours, other)

    def test_gradients_of_several_batches(self, two: None, programs_of_all: None) -> None:
        def make(model: Any) -> list[Any]:
            *before, _ = curved(model)
            return [*before, UpdateOp(model, "loss", merge_grad=2)]

        compiled, plain, ours, other = pair(double, momentum, make)
        in_step(compiled, plain, [batch_of(*step) for step in ALIKE])
        assert_same_copies(ours, other)

    def test_a_changed_learning_rate_and_frozen_weights(self, two: None) -> None:
        compiled, plain, ours, other = pair(double, momentum, curved)
        batch = batch_of(*STEPS[0])
        in_step(compiled, plain, [batch] * 2)
        for model in (ours, other):
            set_lr(model, 0.01)
        in_step(compiled, plain, [batch] * 2)
        for model in (ours, other):
            model.layers[0].trainable = False
        in_step(compiled, plain, [batch] * 2)
        assert_same_copies(ours, other)


def mean(value: Any) -> Any:
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.MEAN, value)


def first_alone(x: Any) -> Any:
    """Have the devices meet twice, with more to do for one of them in between."""
    center = mean(tf.reduce_mean(x))
    x = curve(x - center) if replica() == 0 else x - center
    return x / (1 + mean(tf.reduce_mean(x**2)))


def taking_turns(x: Any) -> Any:
    for turn in range(4):
        x = curve(x) if turn % 2 == replica() else x
        x = x - mean(tf.reduce_mean(x))
    return x


def elsewhere(x: Any) -> Any:
    """Have each device work at what the other one has."""
    with tf.device(DEVICES[1 - replica()]):
        there = curve(x)
        total = tf.reduce_mean(there)
    with tf.device(DEVICES[replica()]):
        return curve(there - mean(total))


class Both(TensorOp):
    """Adds the counts of both devices, by a function."""

    def __init__(self, inputs: str, outputs: str) -> None:
        super().__init__(inputs, outputs)
        self.count = tf.Variable(
            tf.constant(1.0, tf.float64),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
        )

    def forward(self, data: Any, state: Any) -> Any:
        @tf.function(autograph=False)
        def both() -> Any:
            return tf.add_n([one.read_value() for one in self.count.values])

        return data + both()


class TestDevices:
    @pytest.mark.parametrize("function", [first_alone, taking_turns, elsewhere])
    def test_that_differ_in_what_they_do(
        self, two: None, programs_of_all: None, function: Any
    ) -> None:
        def make(model: Any) -> list[Any]:
            return curved(model, LambdaOp(function, "y_pred", "y_pred"))

        compiled, plain, ours, other = pair(double, momentum, make)
        in_step(compiled, plain, [batch_of(*step) for step in ALIKE])
        assert programs_of(compiled)
        assert_same_copies(ours, other)

    def test_that_read_what_others_have(self, two: None) -> None:
        compiled, plain, ours, other = pair(
            double, momentum, lambda model: [Both("x", "x"), *curved(model)]
        )
        in_step(compiled, plain, [batch_of(*step) for step in ALIKE])
        assert programs_of(compiled) == ["2 programs"]
        assert_same_copies(ours, other)


def scaled() -> Any:
    if KERAS_3:
        return keras.optimizers.LossScaleOptimizer(momentum(), initial_scale=8.0)
    return keras.mixed_precision.LossScaleOptimizer(momentum(), initial_scale=8.0)


class TestScaledLosses:
    @pytest.mark.parametrize("rows", [[0], [-1], [0, -1]], ids=["first", "second", "both"])
    def test_that_overflow_on_a_device(
        self, two: None, programs_of_all: None, rows: list[int]
    ) -> None:
        compiled, plain, ours, other = pair(double, scaled, curved)
        x, y = STEPS[0]
        large = y.copy()
        large[rows] = np.inf
        data = [batch_of(x, y), batch_of(x, y), batch_of(x, large), batch_of(x, y)]
        in_step(compiled, plain, data[:2])
        before = [copies_of(one) for one in ours.weights]
        with quietly(), np.errstate(all="ignore"):
            in_step(compiled, plain, data[2:3])
        for weight, wanted in zip(ours.weights, before, strict=True):
            np.testing.assert_array_equal(copies_of(weight), wanted)
        in_step(compiled, plain, data[3:])
        assert programs_of(compiled)
        assert_same_copies(ours, other)
        name = "dynamic_scale" if KERAS_3 else "loss_scale"
        scales = [np.asarray(getattr(one.current_optimizer, name)) for one in (ours, other)]
        np.testing.assert_array_equal(*scales)
