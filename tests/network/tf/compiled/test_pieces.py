"""Steps of which XLA cannot compile all: programs for what it can, and graphs between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fastnet import CompileOptions
from fastnet.network import TFNetwork
from fastnet.network.tf.compiled import reading
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.keras_models import Batch, batches, keras, layers, mlp, tf, train, weights
from tests.network.tf.compiled.steps import (
    ENDING,
    CallingPython,
    assert_same_results,
    assert_same_weights,
    in_step,
    pair,
    warned,
)

pytestmark = pytest.mark.tf


def normed() -> Any:
    return keras.Sequential(
        [
            layers.Input((6,)),
            layers.Dense(5, activation="tanh"),
            layers.BatchNormalization(),
            layers.Dense(3),
        ]
    )


def deep() -> Any:
    inner = [layers.Dense(5, activation="tanh") for _ in range(13)]
    return keras.Sequential([layers.Input((6,)), *inner, layers.Dense(3)])


def noisy(x: Any) -> Any:
    return x + 0.1 * tf.random.normal(tf.shape(x), seed=1)


def sort(x: Any) -> Any:
    return tf.sort(x, axis=-1)


def around(*before: Any, between: Any = None, after: Any = ()) -> Callable[[Any], list[Any]]:
    """Return the ops of a classifier, with ops around its model and before its update."""

    def make(model: Any) -> list[Any]:
        inner = [] if between is None else [between()]
        return [
            *(one() for one in before),
            ModelOp(model, "x", "y"),
            *inner,
            CrossEntropy(("y", "t"), "loss", from_logits=True),
            UpdateOp(model, "loss"),
            *(one() for one in after),
        ]

    return make


def noise() -> Any:
    return LambdaOp(noisy, "x", "x")


def sorting(key: str) -> Callable[[], Any]:
    return lambda: LambdaOp(sort, key, key)


def count_of(network: TFNetwork) -> list[str | None]:
    """Return what was compiled by itself."""
    return [trace.part for trace in network.traces if trace.part is not None]


def counting(inputs: str, outputs: str) -> Callable[[], Any]:
    return lambda: CallingPython(inputs, outputs)


KINDS: dict[str, tuple[Callable[[Any], list[Any]], int]] = {
    "random numbers in front": (around(noise), 1),
    "a sort in front": (around(sorting("x")), 1),
    "a sort between model and loss": (around(between=sorting("y")), 3),
    "Python before the update": (around(between=counting("y", "z")), 2),
    "Python after the update": (around(after=[counting("y", "z")]), 1),
    "Python and a sort": (around(noise, between=sorting("y"), after=[counting("loss", "z")]), 3),
}


class TestSteps:
    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_are_those_of_the_graph(self, kind: str, optimizer: str) -> None:
        ops, count = KINDS[kind]
        programs = f"{count} program{'s' if count > 1 else ''}"
        compiled, plain, ours, other = pair(deep, optimizer, ops)
        with warned() as texts:
            in_step(compiled, plain, batches(20))
        assert_same_weights(ours, other)
        assert count_of(compiled) == [programs]
        part, whole = compiled.traces
        assert part.fallback is None
        assert part.compile_seconds > 0
        assert whole.fallback is not None
        assert whole.fallback.endswith(f"; what is around it is compiled, as {programs}")
        assert texts == [
            "Steps of mode 'train' run as a graph, and not as one compiled program: "
            f"{whole.fallback}{ENDING}"
        ]

    def test_in_all_modes_and_with_batches_of_other_sizes(self) -> None:
        compiled, plain, ours, other = pair(deep, "sgd", around(sorting("x")))
        for size in (8, 5, 8, 5, 7):
            for mode in ("train", "eval", "infer"):
                with warned():
                    in_step(compiled, plain, batches(3, size=size), mode=mode)
        assert_same_weights(ours, other)
        assert len(count_of(compiled)) == 9

    def test_a_learning_rate_counts_in_the_next_step(self) -> None:
        compiled, plain, ours, other = pair(mlp, "sgd", around(sorting("x")))
        for rate in (0.1, 0.5, 0.0):
            for model in (ours, other):
                model.current_optimizer.learning_rate = rate
            with warned():
                in_step(compiled, plain, batches(3))
            assert_same_weights(ours, other)
        assert len(count_of(compiled)) == 1

    def test_results_that_are_always_the_same(self) -> None:
        def sizes(x: Any) -> Any:
            return tf.shape(x), tf.constant([1, 2]), sort(x), x

        def make(model: Any) -> list[Any]:
            return [LambdaOp(sizes, "x", ["s", "c", "x", "same"]), *around()(model)]

        compiled, plain, _, _ = pair(mlp, "sgd", make)
        with warned():
            results = in_step(compiled, plain, batches(3))
        assert results[-1]["s"].numpy().tolist() == [8, 6]
        assert count_of(compiled) == ["1 program"]

    def test_a_condition_that_only_a_graph_can_run(self) -> None:
        def make(model: Any) -> list[Any]:
            def choose(y: Any) -> Any:
                return tf.cond(tf.reduce_sum(y) > 0, lambda: tf.sort(y), lambda: -tf.sort(y))

            between = LambdaOp(tf.autograph.experimental.do_not_convert(choose), "y", "y")
            return around(between=lambda: between)(model)

        compiled, plain, ours, other = pair(deep, "sgd", make)
        with warned():
            in_step(compiled, plain, batches(12))
        assert_same_weights(ours, other)
        assert count_of(compiled) == ["2 programs"]


class TestEffects:
    def test_python_is_called_once_a_step_also_where_a_program_runs_twice(self) -> None:
        compiled, plain, ours, other = pair(mlp, "sgd", around(counting("x", "x")))
        counted = compiled.ops[0]
        assert isinstance(counted, CallingPython)
        data = batches(4)
        # XLA is not asked for the greatest of numbers that may be NaN
        data[2] = {**data[2], "x": data[2]["x"] * float("nan")}
        with warned() as texts:
            results = in_step(compiled, plain, data)
        assert len(counted.seen) == 4
        assert np.isnan(np.asarray(results[2]["y"])).all()
        assert_same_weights(ours, other)
        assert count_of(compiled) == ["1 program"]
        assert len(texts) >= 1

    def test_random_numbers_are_drawn_once_where_a_program_runs_twice(self) -> None:
        def make(model: Any) -> list[Any]:
            def clip(x: Any) -> Any:
                return tf.reduce_max(x, axis=-1)

            return [noise(), LambdaOp(clip, "x", "m"), *around()(model)]

        compiled, plain, _, _ = pair(mlp, "sgd", make)
        data = batches(4)
        rows = data[1]["x"].numpy()
        rows[0] = float("nan")
        data[1] = {**data[1], "x": tf.constant(rows)}
        with warned() as texts:
            results = in_step(compiled, plain, data)
        assert np.isnan(np.asarray(results[1]["m"])[0])
        assert [trace.reason for trace in compiled.traces][-1] == "a step has run twice"
        assert any("values came, such as NaN" in one for one in texts)

    def test_what_python_raises_leaves_weights_as_they_were(self) -> None:
        def make(model: Any) -> list[Any]:
            def check(loss: Any) -> Any:
                if np.isnan(loss.numpy()):
                    raise ValueError("the loss is no number")
                return loss

            def checked(loss: Any) -> Any:
                result = tf.py_function(check, [loss], tf.float32)
                result.set_shape(())
                return result

            return [
                ModelOp(model, "x", "y"),
                CrossEntropy(("y", "t"), "loss", from_logits=True),
                LambdaOp(checked, "loss", "checked"),
                UpdateOp(model, "loss"),
            ]

        compiled, plain, ours, other = pair(deep, "sgd", make)
        fine, *rest = batches(4)
        with warned():
            in_step(compiled, plain, [fine])
        before = weights(ours)
        with compiled("train", 1), pytest.raises(tf.errors.InvalidArgumentError) as caught:
            compiled.run_step({**fine, "x": fine["x"] * float("nan")})
        assert "the loss is no number" in str(caught.value)
        assert any("LambdaOp (op 2" in note for note in caught.value.__notes__)
        np.testing.assert_equal(weights(ours), before)
        with warned():
            in_step(compiled, plain, rest)
        assert_same_weights(ours, other)

    def test_an_assertion_comes_before_any_update(self) -> None:
        def make(model: Any) -> list[Any]:
            def check(x: Any) -> Any:
                tf.debugging.assert_less(tf.abs(x), 100.0, "too large")
                return x

            quiet = tf.autograph.experimental.do_not_convert(check)
            return [LambdaOp(quiet, "x", "x"), *around()(model)]

        compiled, plain, ours, other = pair(deep, "sgd", make)
        fine, *rest = batches(4)
        with warned():
            in_step(compiled, plain, [fine])
        before = weights(ours)
        with compiled("train", 1), pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
            compiled.run_step({**fine, "x": fine["x"] * 1000})
        np.testing.assert_equal(weights(ours), before)
        with warned():
            in_step(compiled, plain, rest)
        assert_same_weights(ours, other)
        assert count_of(compiled) == ["1 program"]

    def test_a_label_out_of_range_is_the_graphs_error(self) -> None:
        compiled, plain, ours, other = pair(mlp, "sgd", around(sorting("x")))
        fine, *rest = batches(4)
        with warned():
            in_step(compiled, plain, [fine])
        before = weights(ours)
        wrong = {**fine, "t": fine["t"] + 3}
        found = []
        for network in (compiled, plain):
            with network("train", 1), pytest.raises(tf.errors.InvalidArgumentError) as caught:
                network.run_step(wrong)
            found.append((str(caught.value).partition("{{")[0], caught.value.__notes__))
        assert found[0] == found[1]
        np.testing.assert_equal(weights(ours), before)
        with warned():
            in_step(compiled, plain, rest)
        assert_same_weights(ours, other)

    def test_what_serves_no_result_is_left_out(self) -> None:
        seen: list[int] = []

        def note(value: Any) -> Any:
            seen.append(1)
            return value

        def make(model: Any) -> list[Any]:
            def unused(x: Any) -> Any:
                noted = tf.numpy_function(note, [_long(x)], x.dtype, stateful=False)
                noted.set_shape(x.shape)
                _long(tf.gather_nd(_long(noted), [[99]]))
                return _long(sort(x))

            quiet = tf.autograph.experimental.do_not_convert(unused)
            return [LambdaOp(quiet, "x", "x"), *around()(model)]

        compiled, plain, ours, other = pair(mlp, "sgd", make)
        with warned():
            in_step(compiled, plain, batches(3))
        assert_same_weights(ours, other)
        assert seen == []
        assert count_of(compiled) == ["1 program"]

    def test_variables_are_written_to_before_and_after_python_as_op_by_op(self) -> None:
        networks = []
        logs: list[list[int]] = []
        counters = []
        for options in ({"compile": True}, {}):
            count = tf.Variable(0)
            log: list[int] = []

            def look(x: Any, count: Any = count, log: list[int] = log) -> Any:
                log.append(int(count))
                if len(log) in (2, 3):
                    raise ValueError("stop")
                return x

            def step(x: Any, count: Any = count, look: Any = look) -> Any:
                count.assign_add(1)
                y = tf.py_function(look, [x], x.dtype)
                count.assign(count * 10 + tf.cast(_long(x)[0, 0] > 99, tf.int32))
                return y, _long(x)

            quiet = tf.autograph.experimental.do_not_convert(step)
            networks.append(TFNetwork([LambdaOp(quiet, "x", ["y", "z"])], **options))
            logs.append(log)
            counters.append(count)
        for network, eager in zip(networks, (False, True), strict=True):
            with warned(), network("infer", 1, eager=eager):
                for number, batch in enumerate(batches(5)):
                    if number in (1, 2):
                        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
                            network.run_step(batch)
                    else:
                        network.run_step(batch)
        assert logs == [[1, 11, 12, 13, 131]] * 2
        assert [int(one) for one in counters] == [1310] * 2
        assert count_of(networks[0]) == ["1 program"]

    def test_after_a_counter_python_stops_an_update(self) -> None:
        def make(model: Any) -> list[Any]:
            count = tf.Variable(0)

            def check(value: Any) -> Any:
                if value > 2:
                    raise ValueError("stop")
                return value

            def counted(x: Any) -> Any:
                return tf.py_function(check, [count.assign_add(1)], tf.int32)

            quiet = tf.autograph.experimental.do_not_convert(counted)
            return [LambdaOp(quiet, "x", "count"), *around()(model)]

        compiled, plain, ours, _ = pair(deep, "sgd", make)
        *fine, last = batches(3)
        with warned():
            in_step(compiled, plain, fine)
        before = weights(ours)
        with compiled("train", 1), pytest.raises(tf.errors.InvalidArgumentError, match="stop"):
            compiled.run_step(last)
        np.testing.assert_equal(weights(ours), before)
        assert count_of(compiled) == ["1 program"]

    def test_a_first_step_that_fails_is_compiled_once(self) -> None:
        def make(model: Any) -> list[Any]:
            def check(x: Any) -> Any:
                if np.isnan(x.numpy()).any():
                    raise ValueError("no number")
                return x

            def checked(x: Any) -> Any:
                result = tf.py_function(check, [x], x.dtype)
                result.set_shape(x.shape)
                return result

            return [LambdaOp(checked, "x", "x"), *around()(model)]

        compiled, plain, ours, other = pair(mlp, "sgd", make)
        data = batches(3)
        with warned(), compiled("train", 1):
            for batch in data:
                with pytest.raises(tf.errors.InvalidArgumentError, match="no number"):
                    compiled.run_step({**batch, "x": batch["x"] * float("nan")})
        assert_same_weights(ours, other)
        with warned():
            in_step(compiled, plain, data)
        assert_same_weights(ours, other)
        assert count_of(compiled) == ["1 program"]

    def test_prints_come_in_their_order(self, capfd: pytest.CaptureFixture[str]) -> None:
        def make(model: Any) -> list[Any]:
            def told(x: Any) -> Any:
                with tf.control_dependencies([tf.print("first"), tf.print("second")]):
                    x = sort(x)
                with tf.control_dependencies([tf.print("third", tf.shape(x))]):
                    return tf.identity(x)

            quiet = tf.autograph.experimental.do_not_convert(told)
            return [LambdaOp(quiet, "x", "x"), *around()(model)]

        compiled, plain, _, _ = pair(mlp, "sgd", make)
        with warned():
            in_step(compiled, plain, batches(2))
        lines = capfd.readouterr().err.split("\n")
        assert sorted(lines[:2]) == ["first", "second"]
        assert lines[2] == "third [8 6]"
        assert count_of(compiled) == ["1 program"]


class TestRefusals:
    def test_random_numbers_that_are_to_be_those_of_the_graph(self) -> None:
        options = CompileOptions(fallback_random=True)
        compiled, plain, _, _ = pair(mlp, "sgd", around(noise), compile=options)
        with warned():
            in_step(compiled, plain, batches(3))
        assert count_of(compiled) == []
        (trace,) = compiled.traces
        assert trace.fallback is not None
        assert trace.fallback.endswith("whose seed does not count when it is compiled")

    def test_random_numbers_of_the_graph_in_a_loop(self) -> None:
        def make(model: Any) -> list[Any]:
            def add(x: Any) -> Any:
                # several at a time would draw in any order
                return tf.map_fn(
                    lambda row: row + tf.random.normal((6,), seed=3), x, parallel_iterations=1
                )

            return [LambdaOp(add, "x", "x"), *around()(model)]

        options = CompileOptions(fallback_random=True)
        compiled, plain, _, _ = pair(mlp, "sgd", make, compile=options)
        with warned():
            for size in (8, 5, 8, 3):
                in_step(compiled, plain, batches(2, size=size))
        assert count_of(compiled) == []

    def test_too_little_around_it(self) -> None:
        compiled, plain, _, _ = pair(mlp, "sgd", lambda model: [sorting("x")()])
        with warned():
            in_step(compiled, plain, batches(3))
        assert count_of(compiled) == []

    def test_a_failure_of_the_compiler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # of what XLA has no kernel for, said to have one
        monkeypatch.setattr(reading, "SAME", frozenset({*reading.SAME, "Lu"}))

        def make(model: Any) -> list[Any]:
            def factors(y: Any) -> Any:
                return tf.linalg.lu(y[:3])[0]

            return [CallingPython("x", "x"), *around()(model), LambdaOp(factors, "y", "z")]

        compiled, plain, ours, other = pair(mlp, "sgd", make)
        with warned() as texts:
            in_step(compiled, plain, batches(3))
        assert_same_weights(ours, other)
        counted = compiled.ops[0]
        assert isinstance(counted, CallingPython)
        assert len(counted.seen) == 3
        assert count_of(compiled) == []
        (trace,) = compiled.traces
        assert trace.fallback is not None
        assert trace.fallback.startswith("XLA has failed with ")
        assert "Lu" in trace.fallback
        assert len(texts) == 1

    def test_shapes_that_are_only_known_in_a_step(self) -> None:
        def make(model: Any) -> list[Any]:
            return [
                LambdaOp(lambda x: tf.boolean_mask(x, x[:, 0] > 0), "x", "x"),
                ModelOp(model, "x", "y"),
                LambdaOp(lambda y: tf.reduce_mean(y**2), "y", "loss"),
                UpdateOp(model, "loss"),
            ]

        compiled, plain, ours, other = pair(mlp, "sgd", make)
        with warned():
            in_step(compiled, plain, batches(4))
        assert_same_weights(ours, other)
        assert count_of(compiled) == []
        assert compiled.traces[0].fallback == (
            "the shapes that its parts take are only known in each step"
        )


class TestAround:
    def test_a_tape_of_the_programs(self) -> None:
        network = TFNetwork([LambdaOp(lambda x: tf.sort(_long(x)), "x", "y")], compile=True)
        x = tf.constant([[0.3, 0.1]])
        with warned(), network("infer", 1):
            network.run_step({"x": x})
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = network.run_step({"x": x})["y"]
            found = tape.gradient(y, x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            wanted = tape.gradient(tf.sort(_long(x)), x)
        np.testing.assert_allclose(found, wanted, 1e-5)
        assert count_of(network) == ["1 program"]

    def test_weights_are_freed_with_the_network(self) -> None:
        import gc
        import weakref

        compiled, plain, _, _ = pair(mlp, "sgd", around(sorting("x")))
        with warned():
            in_step(compiled, plain, batches(2))
        gone = weakref.ref(compiled)
        del compiled, plain
        gc.collect()
        assert gone() is None


def _long(x: Any) -> Any:
    for _ in range(30):
        x = tf.tanh(x) + x
    return x


def test_results_are_those_of_a_loop_by_hand() -> None:
    compiled, _, ours, other = pair(mlp, "sgd", around(sorting("x")))
    data: list[Batch] = batches(10)
    optimizer = other.current_optimizer
    losses = []
    for batch in data:
        with tf.GradientTape() as tape:
            logits = other(tf.sort(batch["x"], axis=-1), training=True)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(batch["t"], logits)
            )
        gradients = tape.gradient(loss, other.trainable_variables)
        optimizer.apply_gradients(zip(gradients, other.trainable_variables, strict=True))
        losses.append({"loss": loss})
    with warned():
        found = train(compiled, data)
    for one, wanted in zip(found, losses, strict=True):
        assert_same_results({"loss": one["loss"]}, wanted)
    assert_same_weights(ours, other)
