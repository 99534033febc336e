"""Compiled steps beside the same network as a graph: training, state, memory and threads."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet import CompileOptions
from fastnet.backend import set_lr
from fastnet.network import TFNetwork
from fastnet.network.tf import xla_program
from fastnet.op.tensorop import Delete, LambdaOp, TensorOp
from fastnet.op.tensorop.gradient import FGSM, GradientOp, Watch
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import EMA, ModelOp, UpdateOp
from tests.network.keras_models import (
    KERAS_3,
    batches,
    keras,
    layers,
    mlp,
    regression,
    supervised,
    tf,
    weights,
)
from tests.network.tf.compiled.steps import (
    assert_same_results,
    assert_same_weights,
    fallbacks,
    in_step,
    is_compiled,
    momentum,
    pair,
)

pytestmark = pytest.mark.tf


def normed() -> Any:
    return keras.Sequential(
        [
            layers.Input((6,)),
            # a bias that the next layer takes out again would have noise for a gradient
            layers.Dense(8, use_bias=False),
            layers.BatchNormalization(momentum=0.5),
            layers.Activation("relu"),
            layers.Dense(3),
        ]
    )


def test_modes_sizes_and_steps_without_it() -> None:
    compiled, plain, ours, other = pair(normed, momentum, supervised)
    sizes = [8, 5, 8, 3, 0]
    data = [batches(1, size, seed)[0] for seed, size in enumerate(sizes)]
    for epoch in (1, 2):
        in_step(compiled, plain, data[:4], epoch=epoch)
        in_step(compiled, plain, data[:4], epoch=epoch, eager=True)
        in_step(compiled, plain, [data[0], data[4]], epoch=epoch, mode="infer")
    assert_same_weights(ours, other)
    assert [trace.reason for trace in compiled.traces if trace.mode == "train"] == [
        "first step in mode 'train'",
        "'t' has the shape (5), where (8) was traced",
        "'t' has the shape (3), where (5) was traced",
    ]
    assert set(fallbacks(compiled)) == {None}


def attacked(model: Any) -> list[Any]:
    return [
        Watch("x"),
        ModelOp(model, "x", "y"),
        CrossEntropy(("y", "t"), "clean", from_logits=True),
        GradientOp("clean", "slope", inputs="x"),
        FGSM("x", "clean", "attacked", epsilon=0.1),
        ModelOp(model, "attacked", "z"),
        CrossEntropy(("z", "t"), "loss", from_logits=True),
        UpdateOp(model, "loss"),
    ]


def penalized(model: Any) -> list[Any]:
    return [
        Watch("x"),
        ModelOp(model, "x", "y"),
        CrossEntropy(("y", "t"), "clean", from_logits=True),
        GradientOp("clean", "slope", inputs="x", higher_order=True),
        GradientOp("clean", "slopes", model=model, higher_order=True),
        LambdaOp(
            lambda clean, slope, slopes: (
                clean
                + tf.reduce_mean((tf.norm(slope, axis=1) - 1) ** 2)
                + sum(tf.reduce_sum(one**2) for one in slopes)
            ),
            ["clean", "slope", "slopes"],
            "loss",
        ),
        Delete("slopes"),
        UpdateOp(model, "loss"),
    ]


def scheduled() -> Any:
    return keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.5), momentum=0.5
    )


def smooth() -> Any:
    return keras.Sequential(
        [layers.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(3)]
    )


def merged(model: Any) -> list[Any]:
    return [*supervised(model, merge_grad=2, clip_norm=0.5), EMA(model, decay=0.9)]


def accumulating() -> Any:
    return keras.optimizers.SGD(0.05, **({"gradient_accumulation_steps": 2} if KERAS_3 else {}))


def warming(model: Any) -> list[Any]:
    ema = EMA(model, decay=lambda n: tf.minimum((1 + n) / (3 + n), 0.6))
    return [
        *supervised(model, outputs={"stepped": "stepped"}),
        ema,
        ModelOp(ema.averaged, "x", "mean"),
    ]


def convolutional() -> Any:
    return keras.Sequential(
        [
            layers.Input((6,)),
            layers.Reshape((3, 2, 1)),
            layers.Conv2D(4, 2, padding="same", activation="relu"),
            layers.MaxPooling2D(2, padding="same"),
            layers.Conv2DTranspose(3, 2, strides=2, use_bias=False),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.LayerNormalization(),
            layers.Dense(3),
        ]
    )


class TestOps:
    @pytest.mark.parametrize(
        ("make", "optimizer", "ops"),
        [
            (mlp, "adam", attacked),
            (smooth, momentum, penalized),
            (mlp, scheduled, merged),
            (mlp, accumulating, warming),
            pytest.param(convolutional, momentum, supervised, marks=pytest.mark.slow),
        ],
        ids=["attacked", "penalized", "merged", "warming", "convolutional"],
    )
    def test_programs(self, make: Any, optimizer: Any, ops: Any) -> None:
        compiled, plain, ours, other = pair(make, optimizer, ops)
        in_step(compiled, plain, batches(4))
        assert_same_weights(ours, other)
        assert is_compiled(compiled)


def test_half_precision() -> None:
    found = []
    for compile in (True, False):
        keras.utils.set_random_seed(0)
        model = fastnet.build(mlp, "sgd", model_name="model", mixed_precision="float16")
        network = TFNetwork(regression(model), compile=compile)
        with network("train", 1):
            losses = [float(network.run_step(batch)["loss"]) for batch in batches(4)]
        found.append((losses, weights(model)))
        # with the older optimizers a scaled loss is a function that the strategy calls
        if compile and KERAS_3:
            assert is_compiled(network)
    np.testing.assert_allclose(found[0][0], found[1][0], 3e-2)
    for own, wanted in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_allclose(own, wanted, 3e-2, 3e-3)


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 draws from generators that XLA has not")
def test_random_numbers_are_the_seeds_and_others_in_each_step() -> None:
    def dropping() -> Any:
        return keras.Sequential([layers.Input((6,)), layers.Dropout(0.5, seed=7)])

    found = []
    for _ in range(2):
        model = fastnet.build(dropping, None, model_name="model")
        network = TFNetwork(ModelOp(model, "x", "y"), compile=True)
        with network("train", 1):
            ones = {"x": tf.ones((50, 6))}
            found.append([np.asarray(network.run_step(ones)["y"]) for _ in range(3)])
        assert is_compiled(network)
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0][0], found[0][1])
    assert set(np.unique(found[0])) == {0, 2}
    assert 0.35 < np.mean(np.array(found[0]) > 0) < 0.65


class Counting(TensorOp):
    """Multiplies by a variable of its own, and counts in it."""

    def __init__(self, inputs: str, outputs: str) -> None:
        super().__init__(inputs, outputs)
        self.count = tf.Variable(1.0)

    def forward(self, data: Any, state: Any) -> Any:
        self.count.assign_add(1.0)
        return data * self.count


def test_weights_rates_and_variables_that_are_set_between_steps() -> None:
    counts: list[Counting] = []

    def ops(model: Any) -> list[Any]:
        counts.append(Counting("x", "x"))
        return [counts[-1], *supervised(model)]

    compiled, plain, ours, other = pair(mlp, "adam", ops)
    saved, data = weights(ours), batches(3)
    in_step(compiled, plain, data)
    with compiled("train", 2), plain("train", 2):
        for place, batch in enumerate(data):
            for model, op in zip((ours, other), counts, strict=True):
                model.set_weights(saved)
                set_lr(model, 0.1 / (1 + place))
                model.current_optimizer.iterations.assign(100)
                op.count.assign(0.5)
            assert_same_results(compiled.run_step(batch), plain.run_step(batch))
    assert [float(one.count) for one in counts] == [1.5, 1.5]
    assert_same_weights(ours, other)
    assert is_compiled(compiled)
    assert len(compiled.traces) == 1


class TestMemory:
    def test_what_was_read_of_weights_stays_what_it_was(self) -> None:
        """Also by the batch: a step writes to the memory of none of these."""

        def ops(model: Any) -> list[Any]:
            kernel = model.trainable_variables[0]
            return [
                LambdaOp(lambda x: kernel + 0.0, "x", "before"),
                LambdaOp(lambda x: tf.convert_to_tensor(kernel), "x", "raw"),
                *supervised(model),
                LambdaOp(lambda w: [w * 2, w], "w", ["twice", "same"]),
            ]

        compiled, plain, ours, other = pair(mlp, momentum, ops)
        held: list[Any] = []
        copies: list[Any] = []
        with compiled("train", 1), plain("train", 1):
            for batch in batches(4):
                results = []
                for one, model in ((compiled, ours), (plain, other)):
                    kernel = model.trainable_variables[0]
                    given = {**batch, "w": kernel.value if KERAS_3 else kernel}
                    read = tf.convert_to_tensor(kernel)
                    results.append(one.run_step(given))
                    held += [read, read.numpy(), results[-1]["raw"], results[-1]["before"]]
                    copies += [np.array(one) for one in held[-4:]]
                np.testing.assert_allclose(results[0]["loss"], results[1]["loss"], 1e-5)
                np.testing.assert_allclose(results[0]["twice"], results[1]["twice"], 1e-5)
                np.testing.assert_allclose(results[0]["twice"], results[0]["same"] * 2)
            for one, wanted in zip(held, copies, strict=True):
                np.testing.assert_array_equal(one, wanted)
        assert_same_weights(ours, other)
        assert not np.array_equal(held[0], held[-1])

    def test_arrays_at_odd_places(self) -> None:
        compiled, plain, *_ = pair(mlp, "sgd", regression)
        memory = np.random.default_rng(0).standard_normal(8 * 6 + 16).astype("float32")
        data = [{"x": memory[shift : shift + 48].reshape(8, 6)} for shift in (1, 2, 3, 8, 15)]
        in_step(compiled, plain, data)
        with compiled("train", 2):
            compiled.run_step(data[0])
        assert is_compiled(compiled)


def test_a_step_of_another_thread_while_the_first_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = Counting("x", "y")
    network = TFNetwork(counts, compile=True)
    batch = {"x": tf.fill([4], 2.0)}
    results: list[float] = []

    def run() -> None:
        results.append(float(network.run_step(batch)["y"][0]))

    make = xla_program.function_for_xla

    def make_beside_a_step(traced: Any) -> Any:
        monkeypatch.undo()
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return make(traced)

    monkeypatch.setattr(xla_program, "function_for_xla", make_beside_a_step)
    with network("infer", 1):
        run()
        run()
    assert results == [4.0, 6.0, 8.0]
    assert [(trace.reason, trace.fallback) for trace in network.traces] == [
        ("first step in mode 'infer'", None)
    ]
    assert is_compiled(network)


@pytest.mark.parametrize("verify", ["first", None, 1])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_tape_around_the_first_step_leaves_later_ones_compiled(verify: Any, mode: str) -> None:
    options = CompileOptions(verify=verify)
    compiled, plain, ours, other = pair(mlp, momentum, supervised, compile=options)
    data = batches(4)
    with compiled(mode, 1), plain(mode, 1):
        for index, batch in enumerate(data):
            with tf.GradientTape() if index == 0 else nullcontext():
                found = compiled.run_step(batch)
            assert_same_results(found, plain.run_step(batch))
    assert_same_weights(ours, other)
    assert [trace.reason for trace in compiled.traces] == [
        f"first step in mode '{mode}'",
        f"first step in mode '{mode}'; compiled in a later step",
    ]
    assert compiled.traces[1].compile_seconds > 0
    assert set(fallbacks(compiled)) == {None}


@pytest.mark.parametrize("verify", ["first", 1, 2])
def test_function_around_compiled_steps_runs_them_as_graphs(verify: Any) -> None:
    options = CompileOptions(verify=verify)
    compiled, plain, ours, other = pair(mlp, momentum, supervised, compile=options)
    data = batches(6)
    with compiled("train", 1), plain("train", 1):
        step = tf.function(lambda batch: compiled.run_step(batch)["loss"])
        for index, batch in enumerate(data):
            found = compiled.run_step(batch)["loss"] if index in (0, 3, 5) else step(batch)
            expected = plain.run_step(batch)["loss"]
            np.testing.assert_allclose(found, expected, 1e-4)
    assert_same_weights(ours, other)


def test_call_in_a_function_of_any_size_leaves_compiling_on() -> None:
    compiled, plain, *_ = pair(mlp, momentum, supervised)
    spec = {"x": tf.TensorSpec((None, 6)), "t": tf.TensorSpec((None,), tf.int64)}
    with compiled("eval", 1), plain("eval", 1):
        step = tf.function(lambda batch: compiled.run_step(batch)["loss"], input_signature=[spec])
        for size in (4, 3):
            (batch,) = batches(1, size)
            expected = plain.run_step(batch)["loss"]
            np.testing.assert_allclose(step(batch), expected, 1e-5)
            np.testing.assert_allclose(compiled.run_step(batch)["loss"], expected, 1e-5)
    assert set(fallbacks(compiled)) == {None}
    assert sum(trace.compile_seconds > 0 for trace in compiled.traces) == 2


@pytest.mark.parametrize("dynamic", [None, True])
def test_call_in_a_function_of_any_size_serves_no_other(dynamic: bool | None) -> None:
    compiled, plain, *_ = pair(mlp, momentum, supervised, dynamic=dynamic)
    spec = {"x": tf.TensorSpec((None, 6)), "t": tf.TensorSpec((None,), tf.int64)}
    with compiled("eval", 1), plain("eval", 1):
        step = tf.function(lambda batch: compiled.run_step(batch)["loss"], input_signature=[spec])
        for size, run in ((4, compiled.run_step), (5, step), (3, compiled.run_step)):
            (batch,) = batches(1, size)
            run(batch)
            expected = plain.run_step(batch)["loss"]
            np.testing.assert_allclose(compiled.run_step(batch)["loss"], expected, 1e-5)
            np.testing.assert_allclose(step(batch), expected, 1e-5)
    assert set(fallbacks(compiled)) == {None}
    assert sum(trace.compile_seconds > 0 for trace in compiled.traces) == 3


def test_call_in_a_function_of_any_size_needs_no_program() -> None:
    options = CompileOptions(max_programs=1)
    compiled, plain, *_ = pair(mlp, momentum, supervised, compile=options)
    spec = {"x": tf.TensorSpec((None, 6)), "t": tf.TensorSpec((None,), tf.int64)}
    (batch,) = batches(1)
    with compiled("eval", 1), plain("eval", 1):
        step = tf.function(lambda batch: compiled.run_step(batch)["loss"], input_signature=[spec])
        expected = plain.run_step(batch)["loss"]
        for loss in (compiled.run_step(batch)["loss"], step(batch)):
            np.testing.assert_allclose(loss, expected, 1e-5)
    assert fallbacks(compiled) == [None, None]


def test_batch_that_no_op_can_take_leaves_compiling_on() -> None:
    compiled, plain, ours, other = pair(mlp, momentum, supervised)
    (bad,) = batches(1)
    bad["x"] = bad["x"][:, :5]
    with compiled("train", 1), plain("train", 1):
        with pytest.raises(Exception, match="ModelOp"):
            compiled.run_step(bad)
        for batch in batches(3):
            assert_same_results(compiled.run_step(batch), plain.run_step(batch))
    assert_same_weights(ours, other)
    assert is_compiled(compiled)
