"""What changes behind a compiled step's back counts as it does for a graph."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet.backend.model_metadata import get_metadata
from fastnet.network import TFNetwork
from fastnet.network.tf import compiled as compiling
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.slicer import AxisSlicer
from tests.network.keras_models import (
    KERAS_3,
    Batch,
    batches,
    keras,
    layers,
    mlp,
    regression,
    same_weights,
    supervised,
    tf,
    twins,
    weights,
)
from tests.network.tf.compiled.steps import (
    assert_same_results,
    assert_same_weights,
    in_step,
    is_compiled,
    modern,
    pair,
    warned,
)

pytestmark = pytest.mark.tf


class Counting(TensorOp):
    """Multiplies by a variable of its own, and counts in it."""

    def __init__(self, inputs: str, outputs: str) -> None:
        super().__init__(inputs, outputs)
        self.count = tf.Variable(1.0)

    def forward(self, data: Any, state: Any) -> Any:
        self.count.assign_add(1.0)
        return data * self.count


def optimizers(*models: Any) -> list[Any]:
    return [get_metadata(model, "current_optimizer") for model in models]


class TestChanges:
    @pytest.mark.parametrize(
        ("make", "name", "value"),
        [
            (modern("adam"), "beta_1", 0.5),
            (modern("adam"), "learning_rate", 0.3),
            (modern("momentum"), "momentum", 0.1),
            (modern("adamw"), "weight_decay", 0.5),
            (modern("amsgrad"), "clipnorm", 0.01),
        ],
    )
    def test_of_an_optimizer(self, make: Any, name: str, value: float) -> None:
        compiled, plain, ours, other = pair(mlp, make, supervised)
        in_step(compiled, plain, batches(3))
        for optimizer in optimizers(ours, other):
            setattr(optimizer, name, value)
        in_step(compiled, plain, batches(3), epoch=2)
        assert_same_weights(ours, other)
        assert is_compiled(compiled)

    def test_of_the_variables_of_an_optimizer_and_of_an_op(self) -> None:
        counts: list[Counting] = []

        def ops(model: Any) -> list[Any]:
            counts.append(Counting("x", "x"))
            return [counts[-1], *supervised(model)]

        compiled, plain, ours, other = pair(mlp, "adam", ops)
        data = batches(4)
        in_step(compiled, plain, data)
        with compiled("train", 2), plain("train", 2):
            for batch in data:
                for optimizer in optimizers(ours, other):
                    optimizer.iterations.assign(100)
                for one in counts:
                    one.count.assign(0.5)
                assert_same_results(compiled.run_step(batch), plain.run_step(batch))
        assert [float(one.count) for one in counts] == [1.5, 1.5]
        assert_same_weights(ours, other)
        assert is_compiled(compiled)

    def test_of_layers(self) -> None:
        def two() -> Any:
            return keras.Sequential(
                [layers.Input((6,)), layers.Dense(6, activation="relu"), layers.Dense(3)]
            )

        compiled, plain, ours, other = pair(two, "sgd", supervised)
        in_step(compiled, plain, batches(2))
        for model in (ours, other):
            model.layers[0].activation = keras.activations.tanh
        in_step(compiled, plain, batches(2), epoch=2)
        for model in (ours, other):
            model.layers[1].trainable = False
            model.layers[0].activation = keras.activations.linear
        in_step(compiled, plain, batches(2), epoch=3)
        assert_same_weights(ours, other)
        assert is_compiled(compiled)

    def test_of_layers_within_an_opening(self) -> None:
        compiled, plain, ours, other = pair(mlp, "sgd", supervised)
        first, second, third = batches(2, 8) + batches(1, 5)
        with compiled("train", 1), plain("train", 1):
            for batch in (first, second):
                assert_same_results(compiled.run_step(batch), plain.run_step(batch))
            for model in (ours, other):
                model.layers[0].trainable = False
            for batch in (first, third, second):
                assert_same_results(compiled.run_step(batch), plain.run_step(batch))
        assert_same_weights(ours, other)

    def test_of_attributes_of_ops(self) -> None:
        class Scale(TensorOp):
            factor = 2.0

            def forward(self, data: Any, state: Any) -> Any:
                return data * self.factor

        made: list[Scale] = []

        def ops(model: Any) -> list[Any]:
            made.append(Scale("x", "x"))
            return [made[-1], *supervised(model)]

        compiled, plain, ours, other = pair(mlp, "sgd", ops)
        for epoch, factor in enumerate([2.0, 0.5, 2.0], 1):
            for op in made:
                op.factor = factor
            in_step(compiled, plain, batches(2), epoch=epoch)
        assert_same_weights(ours, other)
        assert len(compiled.traces) == 2 if compiled.traces[-1].epoch == 2 else 3

    def test_of_what_runs_functions(self) -> None:
        compiled, plain, ours, other = pair(mlp, "sgd", supervised)
        in_step(compiled, plain, batches(2))
        tf.config.run_functions_eagerly(True)
        try:
            in_step(compiled, plain, batches(2), epoch=2)
        finally:
            tf.config.run_functions_eagerly(False)
        in_step(compiled, plain, batches(2), epoch=3)
        assert_same_weights(ours, other)
        assert len(compiled.traces) == 1

    def test_of_the_seed_of_the_program(self) -> None:
        network = TFNetwork(
            LambdaOp(lambda x: x + tf.random.uniform((3,), seed=1), "x", "y"), compile=True
        )
        plain = TFNetwork(LambdaOp(lambda x: x + tf.random.uniform((3,), seed=1), "x", "y"))
        found = []
        with warned():
            for one in (network, plain):
                tf.random.set_seed(5)
                with one("infer", 1):
                    found.append([one.run_step({"x": tf.zeros(3)})["y"].numpy() for _ in range(3)])
        np.testing.assert_array_equal(found[0], found[1])

    @pytest.mark.skipif(not KERAS_3, reason="the policy of Keras 3")
    def test_of_the_policy_of_types(self) -> None:
        compiled, plain, ours, other = pair(mlp, "sgd", supervised)
        in_step(compiled, plain, batches(2))
        before = keras.mixed_precision.dtype_policy()
        keras.mixed_precision.set_dtype_policy("mixed_float16")
        try:
            in_step(compiled, plain, batches(2), epoch=2)
        finally:
            keras.mixed_precision.set_dtype_policy(before)
        assert_same_weights(ours, other)


class TestMemory:
    def test_what_was_read_of_weights_stays_what_it_was(self) -> None:
        compiled, plain, ours, other = pair(
            mlp,
            modern("momentum"),
            lambda model: [
                LambdaOp(lambda x: model.trainable_variables[0] + 0.0, "x", "before"),
                LambdaOp(lambda x: tf.convert_to_tensor(model.trainable_variables[0]), "x", "raw"),
                *supervised(model),
            ],
        )
        data = batches(5)
        held: list[Any] = []
        copies: list[Any] = []
        with compiled("train", 1), plain("train", 1):
            for batch in data:
                read = tf.convert_to_tensor(ours.trainable_variables[0])
                result = compiled.run_step(batch)
                assert_same_results(result, plain.run_step(batch))
                held += [read, read.numpy(), result["raw"], result["before"], result["raw"].numpy()]
                copies += [np.array(one) for one in held[-5:]]
            for one, wanted in zip(held, copies, strict=True):
                np.testing.assert_array_equal(one, wanted)
        assert_same_weights(ours, other)
        assert not np.array_equal(held[0], held[-1])

    def test_a_batch_of_what_the_step_writes_to(self) -> None:
        def ops(model: Any) -> list[Any]:
            return [
                *supervised(model),
                LambdaOp(lambda w: [w * 2, w], "w", ["twice", "same"]),
            ]

        compiled, plain, ours, other = pair(mlp, "sgd", ops)
        (batch,) = batches(1)
        with compiled("train", 1), plain("train", 1):
            for _ in range(4):
                results = [
                    one.run_step({**batch, "w": model.trainable_variables[0].value})
                    if KERAS_3
                    else one.run_step({**batch, "w": model.trainable_variables[0]})
                    for one, model in ((compiled, ours), (plain, other))
                ]
                np.testing.assert_allclose(results[0]["twice"], results[1]["twice"], 1e-5)
                np.testing.assert_allclose(results[0]["twice"], results[0]["same"] * 2)
        assert_same_weights(ours, other)

    def test_arrays_at_odd_places(self) -> None:
        compiled, plain, *_ = pair(mlp, "sgd", regression)
        memory = np.random.default_rng(0).standard_normal(8 * 6 + 16).astype("float32")
        data = [{"x": memory[shift : shift + 48].reshape(8, 6)} for shift in range(1, 16)]
        in_step(compiled, plain, data)
        with compiled("train", 2):
            compiled.run_step(data[0])
        assert is_compiled(compiled)

    def test_tensors_of_other_libraries(self) -> None:
        torch = pytest.importorskip("torch")
        compiled, plain, ours, other = pair(mlp, "sgd", regression)
        memory = torch.randn(8 * 6 + 16)
        data = [{"x": memory[shift : shift + 48].reshape(8, 6)} for shift in (1, 2, 3)]
        in_step(compiled, plain, data)
        assert_same_weights(ours, other)

    def test_nothing_is_left_behind(self) -> None:
        model = fastnet.build(mlp, "adam", model_name="model")
        network = TFNetwork(supervised(model), compile=True)
        (batch,) = batches(1)

        def run(openings: int) -> int:
            for epoch in range(1, openings + 1):
                with network("train", epoch):
                    for _ in range(20):
                        network.run_step(batch)
            gc.collect()
            return len(gc.get_objects())

        run(3)
        before = run(2)
        assert run(20) - before < 40
        assert len(network.traces) == 1


class TestBatches:
    @pytest.mark.parametrize("size", [0, 1])
    def test_of_few_samples(self, size: int) -> None:
        compiled, plain, _, _ = pair(mlp, "sgd", supervised)
        in_step(compiled, plain, batches(2, size), mode="infer")

    def test_of_values_that_are_no_tensors(self) -> None:
        def ops(model: Any) -> list[Any]:
            return [LambdaOp(lambda x, n: x * n, ["x", "n"], "x"), *supervised(model)]

        compiled, plain, ours, other = pair(mlp, "sgd", ops)
        for number in (1.0, 2.0, 1.0):
            in_step(compiled, plain, [{**one, "n": number} for one in batches(2)])
        assert_same_weights(ours, other)

    def test_of_ragged_rows(self) -> None:
        network = TFNetwork(LambdaOp(lambda r: r.flat_values * 2, "x", "y"), compile=True)
        with network("infer", 1):
            for rows in ([[1.0], [2.0, 3.0]], [[1.0, 2.0, 3.0]]):
                found = network.run_step({"x": tf.ragged.constant(rows)})["y"]
                assert found.numpy().tolist() == [2.0 * one for row in rows for one in row]

    def test_that_are_cut_up(self) -> None:
        slicer = AxisSlicer(0, ["x"], unslice=["y"])

        def ops(model: Any) -> list[Any]:
            return [LambdaOp(lambda x: model(x[tf.newaxis]), "x", "y")]

        compiled, _, ours, _ = pair(mlp, "sgd", ops, slicers=slicer)
        with compiled("infer", 1):
            batch = batches(1, 4)[0]
            found = compiled.run_step(batch)
        wanted = np.stack([ours(batch["x"][place, tf.newaxis])[0] for place in range(4)])
        np.testing.assert_allclose(np.reshape(found["y"], (4, 3)), wanted, 1e-5, 1e-6)


def test_two_threads() -> None:
    results: list[list[Batch]] = [[], []]
    models = [fastnet.build(mlp, "sgd", model_name=f"model{place}") for place in range(2)]
    models[1].set_weights(weights(models[0]))
    networks = [TFNetwork(supervised(model), compile=True) for model in models]
    data = batches(20)

    def run(place: int) -> None:
        with networks[place]("train", 1):
            results[place] += [networks[place].run_step(batch) for batch in data]

    threads = [threading.Thread(target=run, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results[0]) == len(results[1]) == 20
    for one, other in zip(*results, strict=True):
        assert_same_results(one, other)
    assert same_weights(*models)


def test_an_update_of_a_model_in_two_networks() -> None:
    model, twin = twins(mlp)
    ours = fastnet.build(lambda: model, modern("adam"), model_name="ours")
    other = fastnet.build(lambda: twin, modern("adam"), model_name="other")
    compiled = TFNetwork(supervised(ours), compile=True)
    beside = TFNetwork(regression(ours))
    plain, plain_beside = TFNetwork(supervised(other)), TFNetwork(regression(other))
    for epoch in range(1, 4):
        in_step(compiled, plain, batches(3), epoch=epoch)
        in_step(beside, plain_beside, batches(2), epoch=epoch)
    assert_same_weights(ours, other)


def test_weights_that_are_kept_on_average() -> None:
    class Average(TensorOp):
        def __init__(self, model: Any) -> None:
            super().__init__(inputs="loss")
            self.model = model
            self.mean = tf.Variable(tf.zeros(model.trainable_variables[0].shape))

        def forward(self, data: Any, state: Any) -> None:
            weight = tf.convert_to_tensor(self.model.trainable_variables[0])
            self.mean.assign(0.9 * self.mean + 0.1 * weight)

    made: list[Average] = []

    def ops(model: Any) -> list[Any]:
        made.append(Average(model))
        return [
            ModelOp(model, "x", "y"),
            LambdaOp(lambda y: tf.reduce_mean(y**2), "y", "loss"),
            UpdateOp(model, "loss"),
            made[-1],
        ]

    compiled, plain, ours, other = pair(mlp, "adam", ops)
    in_step(compiled, plain, batches(5))
    assert is_compiled(compiled)
    np.testing.assert_allclose(made[0].mean, made[1].mean, 1e-4, 1e-6)
    assert_same_weights(ours, other)


def test_a_step_of_another_thread_while_the_first_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = Counting("x", "y")
    network = TFNetwork(counts, compile=True)
    batch = {"x": tf.fill([4], 2.0)}
    results: list[float] = []

    def run() -> None:
        results.append(float(network.run_step(batch)["y"][0]))

    @contextmanager
    def beside(what: str) -> Iterator[None]:
        monkeypatch.undo()
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        yield

    monkeypatch.setattr(compiling, "report_if_slow", beside)
    with network("infer", 1):
        run()
        run()
    assert results == [4.0, 6.0, 8.0]
    assert [(trace.reason, trace.fallback) for trace in network.traces] == [
        ("first step in mode 'infer'", None)
    ]
    assert is_compiled(network)
