"""Whatever raises, while ops are traced or when they run: who is named, and what is left."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.keras_models import (
    infer,
    line,
    tf,
    train,
)
from tests.network.programs import is_free
from tests.network.schedulers import Trouble
from tests.network.tf.test_autograph import line_of
from tests.network.tf_programs import (
    EITHER_WAY,
    Counting,
    Doing,
    first,
    ones,
    reasons,
)

pytestmark = pytest.mark.tf

InvalidArgument = tf.errors.InvalidArgumentError


def moody(x: Any, state: Any) -> Any:
    """Raise while it is traced, or run, for ints."""
    if x.dtype == tf.int32:
        raise Trouble("as told")
    return x + 1


def test_an_error_of_the_first_try_is_told_if_the_last_is_another() -> None:
    tries: list[int] = []

    def fail(x: Any) -> Any:
        tries.append(len(tries))
        if tries == [0]:
            return x
        raise Trouble("the cause" if tries == [0, 1] else "already half done")

    network = TFNetwork(LambdaOp(fail, "x", "y"))
    infer(network, {"x": ones(3)})
    with pytest.raises(Trouble, match="already half done") as caught:
        infer(network, {"x": ones(2)})
    assert any("Trouble: the cause" in note for note in caught.value.__notes__)


class TestLeftUsable:
    @EITHER_WAY
    def test_a_network_whose_op_raised(self, eager: bool) -> None:
        network = TFNetwork(Doing(moody, "x", "y"))
        good, bad = {"x": ones(2)}, {"x": tf.constant([1])}
        for _ in range(2):
            with pytest.raises(Trouble, match="as told"):
                infer(network, bad, eager=eager)
            assert is_free(network)
            for _ in range(2):
                assert infer(network, good, eager=eager)["y"].numpy().tolist() == [2.0, 2.0]
        assert reasons(network) == ([] if eager else [first()])


def positive(x: Any) -> Any:
    tf.debugging.assert_positive(x, message="not positive")
    return x


def add(x: Any, z: Any) -> Any:
    return x + z


def branch(x: Any) -> Any:
    if tf.reduce_sum(x) < 0:
        return tf.gather(x, [7])
    return x


def loop_over(x: Any) -> Any:
    total = tf.zeros([])
    for value in x:
        total += tf.gather(value, 7)
    return total


def in_python(x: Any) -> Any:
    def fail(x: Any) -> Any:
        raise ValueError("as told")

    return tf.py_function(fail, [x], tf.float32)


class TestRunningGraphs:
    """Errors that are raised when a graph runs, of which its ops' Python knows nothing any more."""

    @pytest.mark.parametrize(
        ("fn", "offset", "x", "text", "watched"),
        [
            (positive, 1, -ones(2), "not positive", False),
            (positive, 1, -ones(2), "not positive", True),
            (branch, 1, -ones(2), "7 is not in [0, 2)", False),
            (loop_over, 2, ones(2, 5), "7 is not in [0, 5)", False),
            (in_python, 4, ones(2), "ValueError: as told", False),
        ],
    )
    def test_name_the_op(
        self, fn: Callable[..., Any], offset: int, x: Any, text: str, watched: bool
    ) -> None:
        network = TFNetwork([Counting("x", "x"), LambdaOp(fn, "x", "y")])
        with tf.GradientTape() as tape:
            if watched:
                tape.watch(x)
            with pytest.raises(InvalidArgument) as caught:
                infer(network, {"x": x})
        raised_by = "Raised by LambdaOp (op 1, inputs ['x'], outputs ['y'])."
        assert caught.value.__notes__ == [raised_by, line_of(fn, offset)]
        assert text in str(caught.value)
        assert is_free(network)
        assert network.ops[0].runs == 1
        assert reasons(network) == [first()]

    def test_of_a_gradient_name_whose_it_is(self) -> None:
        model = fastnet.build(line, "sgd")

        @tf.custom_gradient
        def uphill(x: Any) -> Any:
            def gradient(dy: Any) -> Any:
                tf.debugging.assert_positive(dy, message="downhill")
                return dy

            return tf.identity(x), gradient

        ops = [
            ModelOp(model, "x", "y"),
            LambdaOp(uphill, "y", "z"),
            LambdaOp(lambda z, sign: sign * tf.reduce_mean(z), ["z", "sign"], "loss"),
            UpdateOp(model, "loss"),
        ]
        network = TFNetwork(ops)
        train(network, [{"x": ones(3, 2), "sign": ones()}])
        with pytest.raises(InvalidArgument, match="downhill") as caught:
            train(network, [{"x": ones(3, 2), "sign": -ones()}])
        assert caught.value.__notes__[0] == "Raised by UpdateOp (op 3, inputs ['loss'])."
        assert "in gradient: tf.debugging.assert_positive(dy, " in caught.value.__notes__[1]

    def test_of_tensorflows_own_gradient_name_whose_it_is(self) -> None:
        model = fastnet.build(line, "sgd")

        def pick(y: Any) -> Any:
            return tf.gather(tf.debugging.check_numerics(y, "bad"), [0])

        ops = [
            ModelOp(model, "x", "y"),
            LambdaOp(pick, "y", "z"),
            LambdaOp(lambda z: tf.reduce_mean(tf.sqrt(z - z)), "z", "loss"),
            UpdateOp(model, "loss"),
        ]
        with pytest.raises(InvalidArgument) as caught:
            train(TFNetwork(ops), [{"x": ones(3, 2)}])
        assert "Raised by the gradient of LambdaOp (op 1, " in caught.value.__notes__[0]


class TestWhatNoGraphHolds:
    def test_tensors_of_an_earlier_trace(self) -> None:
        kept: list[Any] = []

        def keep(x: Any, state: Any) -> Any:
            kept.append(x + 1)
            return kept[0]

        network = TFNetwork([Counting("x", "x"), Doing(keep, "x", "y")])
        with network(mode="infer", epoch=1):
            network.run_step({"x": ones(2)})
            text = r"Doing \(op 1, .* uses the tensor 'op1_Doing/add:0' of another graph"
            with pytest.raises(TypeError, match=text):
                network.run_step({"x": ones(2, 2)})
            assert network.run_step({"x": ones(2)})["y"].shape == (2,)

    def test_a_batch_that_holds_itself(self) -> None:
        data: list[Any] = []
        data.append(data)
        network = TFNetwork(Counting("x", "y"))
        with pytest.raises(RecursionError) as caught:
            infer(network, {"x": data})
        note = "The value under 'x' holds itself, or is nested too deeply."
        assert note in caught.value.__notes__
        assert infer(network, {"x": 1})["y"] == 1


def test_state_in_plain_attributes_is_warned_of() -> None:
    class RunningMean(TensorOp):
        def __init__(self) -> None:
            super().__init__(inputs="x", outputs="mean")
            self.total, self.count, self.scale = 0.0, 0, 1.0

        def forward(self, data: Any, state: Any) -> Any:
            self.total = self.total + tf.reduce_mean(data)
            self.count += 1
            self.scale = 1.0
            return self.total / self.count

    network = TFNetwork([RunningMean()])
    with pytest.warns(UserWarning, match="RunningMean") as caught, network("train", 1):
        network.run_step({"x": tf.constant(1.0)})
    texts = [str(one.message) for one in caught]
    assert [re.search("its attribute '(.*?)'", text)[1] for text in texts] == ["total"]  # type: ignore[index]
