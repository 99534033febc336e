"""Conditions and loops over tensors in the code of ops, and what becomes of its Python."""

from __future__ import annotations

import importlib.util
import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp
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
from tests.network.tf_programs import EITHER_WAY, ones

pytestmark = pytest.mark.tf

UP = tf.constant([1.0, 2.0])
DOWN = tf.constant([-1.0, -2.0])


def sign(x: Any) -> Any:
    if tf.reduce_sum(x) > 0:
        return x + 1
    return x - 1


def sum_up(x: Any) -> Any:
    total = tf.constant(0.0)
    for value in x:
        if value < 0:
            continue
        total += value
        if total > 2:
            break
    return total


class Signing:
    def method(self, x: Any) -> Any:
        return sign(x)


class TestConditionsAndLoops:
    @EITHER_WAY
    @pytest.mark.parametrize(
        ("fn", "up", "down"),
        [
            (sign, [2.0, 3.0], [-2.0, -3.0]),
            (sum_up, 3.0, 0.0),
            (Signing().method, [2.0, 3.0], [-2.0, -3.0]),
        ],
    )
    def test_of_a_function(self, fn: Callable[..., Any], up: Any, down: Any, eager: bool) -> None:
        network = TFNetwork(LambdaOp(fn, "x", "y"))
        for x, wanted in ((UP, up), (DOWN, down)):
            assert np.array(infer(network, {"x": x}, eager=eager)["y"]).tolist() == wanted
        assert len(network.traces) == (0 if eager else 1)

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


@pytest.mark.filterwarnings("error")
def test_code_whose_source_is_nowhere_has_no_conditions_over_tensors() -> None:
    names: dict[str, Any] = {"tf": tf}
    exec("def fn(x):\n    return tf.square(x)", names)
    network = TFNetwork(LambdaOp(names["fn"], "x", "y"))
    assert infer(network, {"x": DOWN})["y"].numpy().tolist() == [1.0, 4.0]
    exec("def fn(x):\n    return x if tf.reduce_sum(x) > 0 else -x", names)
    network = TFNetwork(LambdaOp(names["fn"], "x", "y"))
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError) as caught:
        infer(network, {"x": DOWN})
    assert "eager=True" in caught.value.__notes__[-1]
    assert infer(network, {"x": DOWN}, eager=True)["y"].numpy().tolist() == [1.0, 2.0]


def test_python_runs_while_tracing() -> None:
    calls: list[int] = []
    source = np.random.default_rng(0)

    def noise(x: Any) -> Any:
        calls.append(1)
        return x + source.random()

    network = TFNetwork(LambdaOp(noise, "x", "y"))
    results = [infer(network, {"x": UP})["y"].numpy().tolist() for _ in range(3)]
    assert results[0] == results[1] == results[2]
    assert len(calls) == 1
    results = [infer(network, {"x": UP}, eager=True)["y"].numpy().tolist() for _ in range(3)]
    assert results[0] != results[1] != results[2]
    assert len(calls) == 4


def line_of(function: Any, offset: int) -> str:
    """Return the note that points to a line of a function."""
    code = function.__code__
    number = code.co_firstlineno + offset
    text = linecache.getline(code.co_filename, number).strip()
    return f'In the source: File "{code.co_filename}", line {number}, in {code.co_name}: {text}'


def installed(folder: Path, code: str) -> Any:
    """Import code as a package that is installed."""
    return imported(folder / "site-packages" / "library.py", code)


def imported(path: Path, code: str) -> Any:
    """Write code into a file, and import it."""
    path.parent.mkdir()
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("library", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Refusal(Exception):
    """An error that takes more than a text."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text, number)
        self.number = number


class TestErrors:
    def test_have_the_line_that_raised(self) -> None:
        def inner(x: Any) -> Any:
            if x is not None:
                raise Refusal("no", 1)

        def outer(x: Any) -> Any:
            if tf.reduce_sum(x) > 0:
                return inner(x)
            return x

        with pytest.raises(Refusal, match="'no', 1") as caught:
            infer(TFNetwork(LambdaOp(outer, "x", "y")), {"x": ones()})
        assert caught.value.number == 1
        line, op, tracing = caught.value.__notes__
        assert line == line_of(inner, 2)
        assert "LambdaOp (op 0, inputs ['x'], outputs ['y'])" in op
        assert "eager=True" in tracing

    def test_have_the_line_of_the_program_rather_than_of_a_library(self, tmp_path: Path) -> None:
        library = installed(tmp_path, "def refuse(x):\n    raise ValueError('no')\n")

        def own(x: Any) -> Any:
            return library.refuse(x)

        with pytest.raises(ValueError, match="no") as caught:
            infer(TFNetwork(LambdaOp(own, "x", "y")), {"x": ones()})
        assert caught.value.__notes__[0] == line_of(own, 1)
        # The program may be installed, too.
        with pytest.raises(ValueError, match="no") as caught:
            infer(TFNetwork(LambdaOp(library.refuse, "x", "y")), {"x": ones()})
        assert caught.value.__notes__[0] == line_of(library.refuse, 1)

    @pytest.mark.parametrize("folder", ["keras", "tensorflow"])
    def test_have_the_line_of_a_program_in_a_folder_of_that_name(
        self, folder: str, tmp_path: Path
    ) -> None:
        # AutoGraph takes equal code for the same.
        code = f"def refuse(x):\n    raise ValueError('no {folder}')\n"
        program = imported(tmp_path / folder / "train.py", code)
        with pytest.raises(ValueError, match=f"no {folder}") as caught:
            infer(TFNetwork(LambdaOp(program.refuse, "x", "y")), {"x": ones()})
        assert caught.value.__notes__[0] == line_of(program.refuse, 1)

    def test_of_running_have_the_line_of_the_program(self, tmp_path: Path) -> None:
        code = "def check(x):\n    return tf.debugging.check_numerics(x, 'bad')\n"
        library = installed(tmp_path, "import tensorflow as tf\n" + code)

        def own(x: Any) -> Any:
            return library.check(x)

        for function in (own, library.check):
            with pytest.raises(tf.errors.InvalidArgumentError, match="bad") as caught:
                infer(TFNetwork(LambdaOp(function, "x", "y")), {"x": ones() / 0})
            assert line_of(function, 1) in caught.value.__notes__

    def test_in_a_condition_have_no_line_of_generated_code(self) -> None:
        def own(x: Any) -> Any:
            if tf.reduce_sum(x) > 0:
                return x @ tf.ones((3, 3))
            return x

        with pytest.raises(ValueError) as caught:  # noqa: PT011
            infer(TFNetwork(LambdaOp(own, "x", "y")), {"x": ones(2, 2)})
        # TensorFlow has dropped the frame of the line below.
        assert caught.value.__notes__[0] == line_of(own, 1)

    @pytest.mark.parametrize("in_a_function", [False, True])
    def test_in_the_code_of_a_model(self, in_a_function: bool) -> None:
        error = Refusal("no", 1)

        class Failing(keras.Model):
            on = False

            def call(self, x: Any) -> Any:
                if self.on:
                    raise error
                return x

        model = Failing()
        model(ones(1, 2))
        model.on = True
        fastnet.build(lambda: model, None, model_name="net")
        op = LambdaOp(lambda x: model(x), "x", "y") if in_a_function else ModelOp(model, "x", "y")
        with pytest.raises(Exception, match="no") as caught:
            infer(TFNetwork(op), {"x": ones(2, 2)})
        notes = caught.value.__notes__
        assert f"{type(op).__name__} (op 0, inputs ['x'], outputs ['y'])" in notes[-2]
        assert "eager=True" in notes[-1]
        if KERAS_3:  # which wraps errors by itself, also eagerly
            assert str(caught.value).strip("'").startswith("Exception encountered when calling")
        else:
            assert caught.value is error
            assert line_of(Failing.call, 2) in notes
            assert (
                f"Exception encountered when calling layer '{model.name}' (type Failing)." in notes
            )
