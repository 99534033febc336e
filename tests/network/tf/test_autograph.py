"""Conditions and loops over tensors in the code of ops, and what becomes of its Python."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.keras_models import (
    KERAS_3,
    assert_close,
    infer,
    keras,
    line,
    loop,
    tf,
    train,
    twins,
)
from tests.network.tf_programs import EITHER_WAY, TRACING, failing, ones

pytestmark = pytest.mark.tf

UP = tf.constant([1.0, 2.0])
DOWN = tf.constant([-1.0, -2.0])


def sign(x: Any) -> Any:
    if tf.reduce_sum(x) > 0:
        return x + 1
    return x - 1


def doubled_to_ten(x: Any) -> Any:
    total = tf.reduce_sum(x)
    while total < 10:
        total *= 2
    return total


def sum_up(x: Any) -> Any:
    total = tf.constant(0.0)
    for value in x:
        if value < 0:
            continue
        total += value
        if total > 2:
            break
    return total


def both(x: Any) -> Any:
    return (tf.reduce_all(x > 0) and not tf.reduce_any(x > 9)) or tf.reduce_sum(x) == -3


class Sign(TensorOp):
    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        if state["mode"] == "infer" and tf.reduce_sum(data) > 0:
            return self.more(data)
        return data - 1

    def more(self, data: Any) -> Any:
        for _ in tf.range(3):
            data += 1
        return data


class Signing:
    def __call__(self, x: Any) -> Any:
        return sign(x)

    def method(self, x: Any) -> Any:
        return sign(x)

    @staticmethod
    def static(x: Any) -> Any:
        return sign(x)


class TestConditionsAndLoops:
    @EITHER_WAY
    @pytest.mark.parametrize(
        ("fn", "up", "down"),
        [
            (sign, [2.0, 3.0], [-2.0, -3.0]),
            (sum_up, 3.0, 0.0),
            (both, True, True),
            (Signing(), [2.0, 3.0], [-2.0, -3.0]),
            (Signing().method, [2.0, 3.0], [-2.0, -3.0]),
            (Signing.static, [2.0, 3.0], [-2.0, -3.0]),
            (tf.function(sign), [2.0, 3.0], [-2.0, -3.0]),
        ],
    )
    def test_of_a_function(self, fn: Callable[..., Any], up: Any, down: Any, eager: bool) -> None:
        network = TFNetwork(LambdaOp(fn, "x", "y"))
        for x, wanted in ((UP, up), (DOWN, down)):
            assert np.array(infer(network, {"x": x}, eager=eager)["y"]).tolist() == wanted
        assert len(network.traces) == (0 if eager else 1)

    @EITHER_WAY
    def test_without_a_bound(self, eager: bool) -> None:
        network = TFNetwork(LambdaOp(doubled_to_ten, "x", "y"))
        assert infer(network, {"x": UP}, eager=eager)["y"].numpy() == 12.0

    @EITHER_WAY
    def test_of_a_class(self, eager: bool) -> None:
        network = TFNetwork(Sign("x", "y"))
        assert infer(network, {"x": UP}, eager=eager)["y"].numpy().tolist() == [4.0, 5.0]
        assert infer(network, {"x": DOWN}, eager=eager)["y"].numpy().tolist() == [-2.0, -3.0]
        assert infer(network, {"x": UP}, "eval", eager)["y"].numpy().tolist() == [0.0, 1.0]

    @EITHER_WAY
    def test_of_any_object_with_a_forward(self, eager: bool) -> None:
        class Duck:
            inputs, outputs, mode, ds_id = ["x"], ["y"], None, set()
            in_list = out_list = False

            def forward(self, data: Any, state: Any) -> Any:
                return sign(data)

        assert infer(TFNetwork(Duck()), {"x": DOWN}, eager=eager)["y"].numpy()[0] == -2.0

    @EITHER_WAY
    def test_of_an_update_of_ones_own(self, eager: bool) -> None:
        class Careful(UpdateOp):
            def forward(self, data: Any, state: Any) -> None:
                if tf.reduce_mean(data) > 0.5:
                    super().forward(data, state)

        model, twin = twins(line)
        fastnet.build(lambda: model, lambda: keras.optimizers.SGD(0.1))
        ops = [
            ModelOp(model, "x", "y"),
            LambdaOp(lambda y, scale: tf.reduce_mean(y**2) + scale, ["y", "scale"], "loss"),
            Careful(model, "loss"),
        ]
        x = ones(3, 2)
        data = [{"x": x, "scale": tf.constant(float(scale))} for scale in (-9, 9, -9, 9)]
        train(TFNetwork(ops), data, eager=eager)
        loop(twin, keras.optimizers.SGD(0.1), data[:2], lambda y, batch: tf.reduce_mean(y**2))
        assert_close(model, twin)

    def test_gradients_flow_through_them(self) -> None:
        model, twin = twins(line)
        fastnet.build(lambda: model, lambda: keras.optimizers.SGD(0.1))

        def cost(y: Any) -> Any:
            total = tf.constant(0.0)
            for row in y:
                if row[0] > 0:
                    total += row[0] ** 2
                else:
                    total -= row[0]
            return total

        ops = [ModelOp(model, "x", "y"), LambdaOp(cost, "y", "loss"), UpdateOp(model, "loss")]
        x = tf.constant([[1.0, 2.0], [-1.0, -2.0], [3.0, -1.0]])
        train(TFNetwork(ops), [{"x": x}])
        loop(
            twin,
            keras.optimizers.SGD(0.1),
            [{"x": x}],
            lambda y, batch: tf.reduce_sum(tf.where(y > 0, y**2, -y)),
        )
        assert_close(model, twin)


class TestLeftAlone:
    def test_what_is_not_to_be_converted(self) -> None:
        plain = tf.autograph.experimental.do_not_convert(sign)
        network = TFNetwork(LambdaOp(plain, "x", "y"))
        with failing(
            tf.errors.OperatorNotAllowedInGraphError,
            None,
            [
                line_of(sign, 1),
                "Raised by LambdaOp (op 0, inputs ['x'], outputs ['y']).",
                TRACING,
            ],
        ):
            infer(network, {"x": UP})
        assert infer(network, {"x": UP}, eager=True)["y"].numpy().tolist() == [2.0, 3.0]

    def test_a_forward_that_is_not_to_be_converted(self) -> None:
        class Plain(TensorOp):
            @tf.autograph.experimental.do_not_convert
            def forward(self, data: Any, state: Any) -> Any:
                return sign(data)

        with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
            infer(TFNetwork(Plain("x", "y")), {"x": UP})

    @pytest.mark.filterwarnings("error")
    def test_code_whose_source_is_nowhere(self) -> None:
        names: dict[str, Any] = {"tf": tf}
        exec("def fn(x):\n    return tf.square(x)", names)
        network = TFNetwork(LambdaOp(names["fn"], "x", "y"))
        assert infer(network, {"x": DOWN})["y"].numpy().tolist() == [1.0, 4.0]

    def test_code_whose_source_is_nowhere_has_no_conditions_over_tensors(self) -> None:
        names: dict[str, Any] = {"tf": tf}
        exec("def fn(x):\n    return x if tf.reduce_sum(x) > 0 else -x", names)
        network = TFNetwork(LambdaOp(names["fn"], "x", "y"))
        with pytest.raises(tf.errors.OperatorNotAllowedInGraphError) as caught:
            infer(network, {"x": DOWN})
        assert caught.value.__notes__[-1] == TRACING
        assert infer(network, {"x": DOWN}, eager=True)["y"].numpy().tolist() == [1.0, 2.0]

    def test_fastnets_own_ops(self) -> None:
        # what AutoGraph has converted would have a line of its own in here
        seen: list[str] = []

        class Looking(keras.layers.Layer):
            def call(self, x: Any) -> Any:
                frame: Any = sys._getframe()
                seen.clear()
                while frame:
                    if frame.f_code.co_name != "tf___call":  # what turns AutoGraph on
                        seen.append(frame.f_code.co_filename)
                    frame = frame.f_back
                return x

        model = fastnet.build(lambda: keras.Sequential([Looking()]), None)
        infer(TFNetwork(ModelOp(model, "x", "y")), {"x": ones(1, 2)})
        package = str(Path(fastnet.__file__).parent)
        assert any(name.startswith(package) for name in seen)
        last = next(place for place, name in enumerate(seen) if "tensorop/model/model.py" in name)
        assert not any("__autograph_generated" in name for name in seen[last:])

    @pytest.mark.parametrize("autograph", [True, False])
    def test_whatever_a_function_around_the_step_asks_for(self, autograph: bool) -> None:
        network = TFNetwork(LambdaOp(sign, "x", "y"))

        @tf.function(autograph=autograph)
        def step(x: Any) -> Any:
            return network.run_step({"x": x})["y"]

        with network(mode="infer", epoch=1):
            assert step(UP).numpy().tolist() == [2.0, 3.0]


class TestPython:
    """`TFNetwork` says of itself when the Python in an op runs."""

    def test_runs_while_tracing(self, capsys: pytest.CaptureFixture[str]) -> None:
        calls: list[int] = []
        source = np.random.default_rng(0)

        def noise(x: Any) -> Any:
            print("in the op")
            calls.append(1)
            return x + source.random()

        network = TFNetwork(LambdaOp(noise, "x", "y"))
        with network(mode="infer", epoch=1):
            results = [network.run_step({"x": UP})["y"].numpy().tolist() for _ in range(3)]
        assert results[0] == results[1] == results[2]
        assert len(calls) == 1
        assert capsys.readouterr().out == "in the op\n"
        with network(mode="infer", epoch=1, eager=True):
            results = [network.run_step({"x": UP})["y"].numpy().tolist() for _ in range(3)]
        assert results[0] != results[1] != results[2]
        assert len(calls) == 4

    def test_random_numbers_of_tensorflow_are_new_in_each_step(self) -> None:
        network = TFNetwork(LambdaOp(lambda x: x + tf.random.uniform([2]), "x", "y"))
        with network(mode="infer", epoch=1):
            results = {tuple(network.run_step({"x": UP})["y"].numpy()) for _ in range(3)}
        assert len(results) == 3

    def test_a_print_of_tensorflow_prints_in_each_step(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        network = TFNetwork(LambdaOp(lambda x: tf.print("in the graph:", x), "x"))
        with network(mode="infer", epoch=1):
            for _ in range(3):
                network.run_step({"x": UP})
        assert capfd.readouterr().err.count("in the graph: [1 2]\n") == 3

    def test_a_python_function_in_the_graph_runs_in_each_step(self) -> None:
        # what is in a container of a closure would be part of the graph
        calls: SimpleQueue[Any] = SimpleQueue()

        def note(x: Any) -> Any:
            calls.put(x.numpy().tolist())
            return x

        network = TFNetwork(LambdaOp(lambda x: tf.py_function(note, [x], tf.float32), "x", "y"))
        with network(mode="infer", epoch=1):
            for number in range(3):
                y = network.run_step({"x": tf.fill([number], 1.0)})["y"]
                assert y.numpy().tolist() == [1.0] * number
        assert [calls.get() for _ in range(3)] == [[], [1.0], [1.0, 1.0]]
        assert len(network.traces) == 2


def line_of(function: Any, offset: int) -> str:
    """Return the note that points to a line of a function."""
    code = function.__code__
    number = code.co_firstlineno + offset
    text = linecache.getline(code.co_filename, number).strip()
    return f'In the source: File "{code.co_filename}", line {number}, in {code.co_name}: {text}'


class Refusal(Exception):
    """An error that takes more than a text."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text, number)
        self.number = number


class TestErrors:
    @staticmethod
    def raising(error: BaseException) -> Callable[..., Any]:
        def fail(x: Any) -> Any:
            raise error

        return fail

    @EITHER_WAY
    @pytest.mark.parametrize(
        "error",
        [
            Refusal("no", 3),
            KeyError("no"),
            ValueError("no", 1, None),
            RuntimeError(),
            AssertionError("in user code:\n\nno"),
            UnicodeDecodeError("utf-8", b"a", 0, 1, "no"),
            tf.errors.InvalidArgumentError(None, None, "no"),
            StopIteration("no"),
        ],
        ids=repr,
    )
    def test_are_what_the_op_raised(self, error: Exception, eager: bool) -> None:
        error.__dict__.pop("__notes__", None)
        fail = self.raising(error)
        network = TFNetwork([LambdaOp(sign, "x", "z"), LambdaOp(fail, "x", "y")])
        text, args = str(error), error.args
        op = "Raised by LambdaOp (op 1, inputs ['x'], outputs ['y'])."
        notes = [op] if eager else [line_of(fail, 1), op, TRACING]
        with failing(type(error), text, notes) as caught:
            infer(network, {"x": ones()}, eager=eager)
        assert caught == [error]
        assert error.args == args
        assert error.__cause__ is error.__context__ is None

    def test_have_the_line_that_raised(self) -> None:
        def inner(x: Any) -> Any:
            if x is not None:
                raise Refusal("no", 1)

        def outer(x: Any) -> Any:
            if tf.reduce_sum(x) > 0:
                return inner(x)
            return x

        with failing(
            Refusal,
            "('no', 1)",
            [
                line_of(inner, 2),
                "Raised by LambdaOp (op 0, inputs ['x'], outputs ['y']).",
                TRACING,
            ],
        ) as caught:
            infer(TFNetwork(LambdaOp(outer, "x", "y")), {"x": ones()})
        assert caught[0].number == 1  # type: ignore[attr-defined]

    def test_of_a_lambda_have_its_line(self) -> None:
        fail = lambda x: {}[x.dtype]  # noqa: E731
        with failing(
            KeyError,
            "tf.float32",
            [line_of(fail, 0), "Raised by LambdaOp (op 0, inputs ['x'], outputs ['y']).", TRACING],
        ):
            infer(TFNetwork(LambdaOp(fail, "x", "y")), {"x": ones()})

    def test_keep_what_they_came_of(self) -> None:
        def look_up(x: Any) -> Any:
            return {}[3]

        def fail(x: Any) -> Any:
            try:
                return look_up(x)
            except KeyError as error:
                raise Refusal("no", 1) from error

        def fail_too(x: Any) -> Any:
            try:
                return look_up(x)
            except KeyError:
                raise Refusal("no", 1)  # noqa: B904

        for function in (fail, fail_too):
            with pytest.raises(Refusal) as caught:
                infer(TFNetwork(LambdaOp(function, "x", "y")), {"x": ones()})
            assert repr(caught.value.__context__) == "KeyError(3)"
            assert caught.value.__suppress_context__ is (function is fail)
            assert (repr(caught.value.__cause__) == "KeyError(3)") is (function is fail)

    @pytest.mark.parametrize("error", [Refusal("no", 1), ValueError("no"), KeyError("no")])
    @pytest.mark.parametrize("in_a_function", [False, True])
    def test_in_the_code_of_a_model(self, error: Exception, in_a_function: bool) -> None:
        class Failing(keras.Model):
            on = False

            def call(self, x: Any) -> Any:
                if self.on:
                    raise error
                return x

        error.__dict__.pop("__notes__", None)
        model = Failing()
        model(ones(1, 2))
        model.on = True
        fastnet.build(lambda: model, None, model_name="net")
        op = LambdaOp(lambda x: model(x), "x", "y") if in_a_function else ModelOp(model, "x", "y")
        with pytest.raises(Exception, match="no") as caught:
            infer(TFNetwork(op), {"x": ones(2, 2)})
        notes = caught.value.__notes__
        assert notes[-2:] == [
            f"Raised by {type(op).__name__} (op 0, inputs ['x'], outputs ['y']).",
            TRACING,
        ]
        if KERAS_3:  # which wraps errors by itself, also eagerly
            assert str(caught.value).strip("'").startswith("Exception encountered when calling")
        else:
            assert caught.value is error
            assert line_of(Failing.call, 2) in notes
            assert (
                f"Exception encountered when calling layer '{model.name}' (type Failing)." in notes
            )

    def test_that_are_no_exceptions_pass_through(self) -> None:
        with pytest.raises(KeyboardInterrupt) as caught:
            infer(TFNetwork(LambdaOp(self.raising(KeyboardInterrupt()), "x", "y")), {"x": UP})
        assert caught.value.__notes__ == ["Raised by LambdaOp (op 0, inputs ['x'], outputs ['y'])."]
