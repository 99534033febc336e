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
    keras,
    line,
    regression,
    same_weights,
    tf,
    train,
    twins,
    weights,
)
from tests.network.programs import is_free
from tests.network.schedulers import Trouble
from tests.network.tf.test_autograph import line_of
from tests.network.tf_programs import (
    EITHER_WAY,
    TRACING,
    Counting,
    Doing,
    failing,
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

    @EITHER_WAY
    def test_within_one_opening(self, eager: bool) -> None:
        network = TFNetwork(Doing(moody, "x", "y"))
        with network(mode="infer", epoch=1, eager=eager):
            for _ in range(2):
                with pytest.raises(Trouble):
                    network.run_step({"x": tf.constant([1])})
                assert network.run_step({"x": ones(1)})["y"].numpy().tolist() == [2.0]
        assert len(network.traces) == (0 if eager else 1)

    def test_an_op_that_comes_to_its_senses(self) -> None:
        troubles = [Trouble("as told")] * 2

        def fail(x: Any, state: Any) -> Any:
            if troubles:
                raise troubles.pop()
            return x

        network = TFNetwork(Doing(fail, "x", "y"))
        for _ in range(2):
            with pytest.raises(Trouble):
                infer(network, {"x": ones(2)})
        for _ in range(2):
            infer(network, {"x": ones(2)})
        assert reasons(network) == [first()]

    @EITHER_WAY
    def test_models_are_as_they_were(self, eager: bool) -> None:
        model, twin = twins(line)
        fastnet.build(lambda: model, "adam")
        network = TFNetwork([*regression(model), Doing(moody, "z", "w")])
        bad = {"x": ones(3, 2), "z": tf.constant(1)}
        with pytest.raises(Trouble):
            train(network, [bad], eager=eager)
        if not eager:
            assert same_weights(model, twin)
        before = weights(model)
        train(network, [{"x": ones(3, 2), "z": ones()}], eager=eager)
        assert not same_weights(model, before)

    @EITHER_WAY
    def test_what_was_put_off_is_dropped(self, eager: bool) -> None:
        model, twin = twins(line)
        fastnet.build(lambda: model, "sgd")
        network = TFNetwork([*regression(model, defer=True), Doing(moody, "z", "w")])
        with network(mode="train", epoch=1, eager=eager):
            with pytest.raises(Trouble):
                network.run_step({"x": ones(3, 2), "z": tf.constant(1)})
            assert network.ctx_state["deferred"] == {}
        assert same_weights(model, twin)


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

    RUNNING = (
        (positive, 1, {"x": -ones(2)}, InvalidArgument, "not positive"),
        (branch, 1, {"x": -ones(2)}, InvalidArgument, "7 is not in [0, 2)"),
        (loop_over, 2, {"x": ones(2, 5)}, InvalidArgument, "7 is not in [0, 5)"),
        (in_python, 4, {"x": ones(2)}, InvalidArgument, "ValueError: as told"),
    )

    @pytest.mark.parametrize("watched", [False, True])
    @pytest.mark.parametrize(("fn", "offset", "batch", "kind", "text"), RUNNING)
    def test_name_the_op(
        self,
        fn: Callable[..., Any],
        offset: int,
        batch: Any,
        kind: type[Exception],
        text: str,
        watched: bool,
    ) -> None:
        inputs = list(batch)
        network = TFNetwork(
            [Counting("x", "x"), LambdaOp(fn, inputs, "y"), LambdaOp(lambda y: y + 1, "y", "z")]
        )
        notes = [f"Raised by LambdaOp (op 1, inputs {inputs}, outputs ['y']).", line_of(fn, offset)]
        with failing(kind, None, notes) as caught:
            if watched:
                with tf.GradientTape() as tape:
                    tape.watch(batch["x"])
                    infer(network, batch)
            else:
                infer(network, batch)
        assert text in str(caught[0])
        assert is_free(network)
        assert network.ops[0].runs == 1
        assert reasons(network) == [first()]

    def test_of_a_graph_for_any_size_name_the_op(self) -> None:
        network = TFNetwork([Counting("x", "x"), LambdaOp(add, ["x", "z"], "y")])
        for size in (4, 5):
            infer(network, {"x": ones(size), "z": ones(size)})
        notes = [
            "Raised by LambdaOp (op 1, inputs ['x', 'z'], outputs ['y']).",
            line_of(add, 1),
        ]
        with failing(InvalidArgument, None, notes) as caught:
            infer(network, {"x": ones(2), "z": ones(3)})
        assert "Incompatible shapes: [2] vs. [3]" in str(caught[0])
        assert is_free(network)
        assert network.ops[0].runs == 2

    def test_of_a_model_name_its_op(self) -> None:
        model = fastnet.build(
            lambda: keras.Sequential([keras.layers.Embedding(3, 2), keras.layers.Dense(1)]), None
        )
        network = TFNetwork([Counting("x", "x"), ModelOp(model, "x", "y")])
        assert infer(network, {"x": tf.constant([[1, 2]])})["y"].shape == (1, 2, 1)
        with failing(
            InvalidArgument, None, ["Raised by ModelOp (op 1, inputs ['x'], outputs ['y'])."]
        ) as caught:
            infer(network, {"x": tf.constant([[1, 7]])})
        assert "is not in [0, 3)" in str(caught[0])

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
        with failing(
            InvalidArgument,
            None,
            ["Raised by the gradient of LambdaOp (op 1, inputs ['y'], outputs ['z'])."],
        ):
            train(TFNetwork(ops), [{"x": ones(3, 2)}])

    def test_of_no_op_are_as_they_are(self) -> None:
        def fail(x: Any, state: Any) -> Any:
            # a name that no op has
            with tf.name_scope("op9_Other/"):
                return tf.gather(x, [7])

        with failing(InvalidArgument, None):
            infer(TFNetwork(Doing(fail, "x", "y")), {"x": ones(2)})

    def test_leave_the_network_usable(self) -> None:
        network = TFNetwork(LambdaOp(positive, "x", "y"))
        with network(mode="infer", epoch=1):
            for _ in range(2):
                with pytest.raises(InvalidArgument):
                    network.run_step({"x": -ones(2)})
                assert network.run_step({"x": ones(2)})["y"].numpy().tolist() == [1.0, 1.0]
        assert len(network.traces) == 1

    def test_eager_they_are_as_those_of_any_op(self) -> None:
        network = TFNetwork(LambdaOp(positive, "x", "y"))
        with failing(
            InvalidArgument, None, ["Raised by LambdaOp (op 0, inputs ['x'], outputs ['y'])."]
        ):
            infer(network, {"x": -ones(2)}, eager=True)


def to_array(x: Any, state: Any) -> Any:
    return x.numpy()


class TestWhatNoGraphHolds:
    def test_arrays_of_tensors(self) -> None:
        network = TFNetwork(Doing(to_array, "x", "y"))
        with failing(
            AttributeError,
            "'SymbolicTensor' object has no attribute 'numpy'",
            [line_of(to_array, 1), "Raised by Doing (op 0, inputs ['x'], outputs ['y']).", TRACING],
        ):
            infer(network, {"x": ones(2)})
        assert infer(network, {"x": ones(2)}, eager=True)["y"].tolist() == [1.0, 1.0]

    @pytest.mark.parametrize("returned", [True, False])
    def test_tensors_of_an_earlier_trace(self, returned: bool) -> None:
        kept: list[Any] = []

        def keep(x: Any, state: Any) -> Any:
            kept.append(x + 1)
            return kept[0] if returned else kept[0] * 2

        network = TFNetwork([Counting("x", "x"), Doing(keep, "x", "y")])
        with network(mode="infer", epoch=1):
            network.run_step({"x": ones(2)})
            with failing(
                TypeError,
                "Doing (op 1, inputs ['x'], outputs ['y']) uses the tensor 'op1_Doing/add:0' of "
                "another graph: an op has kept it from an earlier trace, or it is of a tf.function "
                "around the step. Let the tensors of a step come from its batch, and keep what "
                "outlives it in a tf.Variable.",
                [TRACING],
            ):
                network.run_step({"x": ones(2, 2)})
            assert network.run_step({"x": ones(2)})["y"].shape == (2,)

    def test_tensors_of_a_function_around_the_step(self) -> None:
        outer: list[Any] = []
        network = TFNetwork(Doing(lambda x, state: x + outer[0], "x", "y"))

        @tf.function
        def step(x: Any) -> Any:
            outer.append(x * 2)
            return network.run_step({"x": x})["y"]

        with (
            network(mode="infer", epoch=1),
            pytest.raises(TypeError, match=r"Doing \(op 0, .*of another graph"),
        ):
            step(ones(2))

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
