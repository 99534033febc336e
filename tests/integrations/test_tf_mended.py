"""What fastnet does differently in TensorFlow, each beside the fault that FastEstimator 1.7.0 has.

One class a fault. The first test of each shows FastEstimator's, so that it is noticed if it goes.
"""

from __future__ import annotations

import os
import sys
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.integrations.sides import Sides
from tests.integrations.tf_sides import (
    MARKS,
    assert_same,
    batches,
    mlp,
    one_hot_loss,
    start_over,
    steps,
    tf,
)

pytestmark = MARKS

keras = tf.keras

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Record:
    value: Any
    name: str


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    start_over()
    yield
    start_over()


def copier(lib: Any, **settings: Any) -> Any:
    return lib.network.TFNetwork([lib.op.tensorop.TensorOp("x", "y")], **settings)


def of_function(lib: Any, fn: Any, **settings: Any) -> Any:
    return lib.network.TFNetwork([lib.op.tensorop.LambdaOp(fn, "x", "y")], **settings)


def trainer(lib: Any, model: Any, *more: Any, **settings: Any) -> Any:
    models = lib.op.tensorop.model
    return lib.Network(
        [
            models.ModelOp(model, "x", "y"),
            one_hot_loss(lib),
            models.UpdateOp(model, "loss", **settings),
            *more,
        ]
    )


ONES = tf.ones(2)


class TestRunStepOutsideAContext:
    def test_is_not_caught(self, sides: Sides) -> None:
        network = copier(sides.fastestimator)
        network("eval", 1, "", eager=True)
        assert not network.ctx_lock.locked()
        assert network.run_step({"x": ONES})["y"] is ONES

    def test_is_refused(self, sides: Sides) -> None:
        network = copier(sides.fastnet)
        for configure in (False, True):
            if configure:
                network("eval", 1, "")
            with pytest.raises(ValueError, match=r"with network\(mode="):
                network.run_step({"x": ONES})
        with network("eval", 1, ""):
            network.run_step({"x": ONES})


class TestAnOpeningThatRaises:
    @staticmethod
    def network(lib: Any) -> Any:
        return copier(lib, slicers=lib.slicer.AxisSlicer(0, slice="x"))

    def test_keeps_the_lock(self, sides: Sides) -> None:
        network = self.network(sides.fastestimator)
        with pytest.raises(ValueError, match="un-sliced"):
            network("eval", 1, "")
        with pytest.raises(ValueError, match="already active"):
            network("eval", 1, "", {"z"})

    def test_leaves_it_usable(self, sides: Sides) -> None:
        network = self.network(sides.fastnet)
        with pytest.raises(ValueError, match="un-slices"):
            network("eval", 1, "")
        with network("eval", 1, "", {"z"}):
            network.run_step({"x": ONES})


class TestNoOpInForce:
    @staticmethod
    def network(lib: Any) -> Any:
        return lib.network.TFNetwork([lib.op.tensorop.TensorOp("x", "y", mode="train")])

    def test_is_a_type_error(self, sides: Sides) -> None:
        with pytest.raises(TypeError, match="union"):
            self.network(sides.fastestimator)("eval", 1, "")

    def test_gives_the_batch_back(self, sides: Sides) -> None:
        batch = {"x": ONES}
        for eager in (False, True):
            (result,) = steps(self.network(sides.fastnet), [batch], "eval", eager=eager)
            assert result is not batch
            assert result.keys() == batch.keys()
            assert result["x"] is ONES


class TestTransformOfADict:
    def test_replaces_the_callers_values(self, sides: Sides) -> None:
        batch: dict[str, Any] = {"x": 1.5, "nest": {"deep": 2}}
        copier(sides.fastestimator).transform(batch, mode="eval")
        assert tf.is_tensor(batch["x"])
        assert tf.is_tensor(batch["nest"]["deep"])

    def test_leaves_them(self, sides: Sides) -> None:
        batch: dict[str, Any] = {"x": 1.5, "nest": {"deep": 2}}
        result = copier(sides.fastnet).transform(batch, mode="eval")
        assert batch == {"x": 1.5, "nest": {"deep": 2}}
        assert tf.is_tensor(result["y"])
        assert tf.is_tensor(result["nest"]["deep"])


class TestOptimizersInASchedule:
    @staticmethod
    def schedulers(lib: Any) -> list[Any]:
        return [
            lib.schedule.EpochScheduler({1: "adam", 3: None}),
            lib.schedule.RepeatScheduler(["adam", None]),
        ]

    def test_are_built_in_place(self, sides: Sides) -> None:
        for scheduler in self.schedulers(sides.fastestimator):
            sides.fastestimator.build(mlp, scheduler, model_name="mlp")
            assert isinstance(scheduler.get_current_value(1), keras.optimizers.legacy.Adam)
            # a second model would be given the first one's
            with pytest.raises(AssertionError, match="callable"):
                sides.fastestimator.build(mlp, scheduler, model_name="second")

    def test_are_built_in_a_copy(self, sides: Sides) -> None:
        for scheduler in self.schedulers(sides.fastnet):
            one = sides.fastnet.build(mlp, scheduler, model_name="one")
            two = sides.fastnet.build(mlp, scheduler, model_name="two")
            assert scheduler.get_all_values() == ["adam", None]
            assert one.current_optimizer is not two.current_optimizer
            for model in (one, two):
                assert isinstance(model.current_optimizer, keras.optimizers.legacy.Adam)


class TestPrecisionPolicy:
    def test_is_left_changed(self, sides: Sides) -> None:
        sides.fastestimator.build(mlp, "sgd", model_name="mlp", mixed_precision=True)
        assert keras.mixed_precision.global_policy().name == "mixed_float16"
        sides.fastestimator.build(mlp, "sgd", model_name="mlp")
        assert keras.mixed_precision.global_policy().name == "float32"

    def test_is_left_alone(self, sides: Sides) -> None:
        keras.mixed_precision.set_global_policy("float64")
        for mixed in (True, False):
            model = sides.fastnet.build(mlp, "sgd", model_name="mlp", mixed_precision=mixed)
            assert keras.mixed_precision.global_policy().name == "float64"
            policy = model.layers[0].dtype_policy.name
            assert (policy == "mixed_float16") is mixed

    def test_is_left_alone_by_a_model_that_fails(self, sides: Sides) -> None:
        def broken() -> Any:
            raise OSError("no model today")

        with pytest.raises(OSError, match="no model today"):
            sides.fastnet.build(broken, "sgd", mixed_precision=True)
        assert keras.mixed_precision.global_policy().name == "float32"


class TestOutput:
    """Where a step writes: seen from inside it, and from what comes through."""

    @staticmethod
    def seen(lib: Any, eager: bool) -> list[bool]:
        own = sys.stdout, tf.print, os.fstat(1).st_ino, os.fstat(2).st_ino
        told: list[bool] = []

        def look(x: Any) -> Any:
            now = sys.stdout, tf.print, os.fstat(1).st_ino, os.fstat(2).st_ino
            told.extend(one is other for one, other in zip(now[:2], own[:2], strict=True))
            told.extend(one == other for one, other in zip(now[2:], own[2:], strict=True))
            return x

        def fn(x: Any) -> Any:
            return look(x) if eager else tf.py_function(look, [x], tf.float32)

        steps(of_function(lib, fn), [{"x": ONES}], "infer", eager=eager)
        return told

    @pytest.mark.parametrize("eager", [True, False])
    def test_is_redirected(self, sides: Sides, eager: bool) -> None:
        assert self.seen(sides.fastestimator, eager) == [False] * 4

    @pytest.mark.parametrize("eager", [True, False])
    def test_goes_where_it_went(self, sides: Sides, eager: bool) -> None:
        assert self.seen(sides.fastnet, eager) == [True] * 4

    def test_of_c_code_is_seen(self, sides: Sides, capfd: pytest.CaptureFixture[str]) -> None:
        for lib, expected in ((sides.fastestimator, ""), (sides.fastnet, "from below\n")):
            network = of_function(lib, lambda x: (os.write(1, b"from below\n"), x)[1])
            steps(network, [{"x": ONES}], "infer", eager=True)
            assert capfd.readouterr().out == expected


class TestTypesOfValues:
    """That an op returns, in a graph."""

    @staticmethod
    def network(lib: Any) -> Any:
        return of_function(lib, lambda x: Pair(x, [Record(x * 2, "name")]))

    def test_must_be_what_tensorflow_knows(self, sides: Sides) -> None:
        with pytest.raises(TypeError, match="Record"):
            steps(self.network(sides.fastestimator), [{"x": ONES}], "infer")

    def test_survive(self, sides: Sides) -> None:
        for eager in (False, True):
            results = steps(self.network(sides.fastnet), [{"x": ONES}] * 2, "infer", eager=eager)
            for result in results:
                assert type(result["y"]) is Pair
                (record,) = result["y"].right
                assert (type(record), record.name) == (Record, "name")
                assert record.value.numpy().tolist() == [2, 2]


class TestTooFewOutputs:
    @staticmethod
    def network(lib: Any) -> Any:
        op = lib.op.tensorop.LambdaOp(lambda x: [x + 1], "x", ["y", "z"])
        return lib.network.TFNetwork([op])

    def test_are_written_without_a_word(self, sides: Sides) -> None:
        result = self.network(sides.fastestimator).transform({"x": ONES}, mode="eval")
        assert set(result) == {"x", "y"}

    @pytest.mark.parametrize("eager", [True, False])
    def test_are_an_error(self, sides: Sides, eager: bool) -> None:
        with pytest.raises(ValueError, match=r"LambdaOp.*2 outputs.*returned 1 value"):
            steps(self.network(sides.fastnet), [{"x": ONES}], "eval", eager=eager)


# What follows is not in the design's table.


class TestWhatAnEpochLeavesBehind:
    """FastEstimator clears Keras's session whenever a network is left."""

    @staticmethod
    def masks(lib: Any) -> list[list[float]]:
        def dropping() -> Any:
            return keras.Sequential([keras.layers.Input((64,)), keras.layers.Dropout(0.5)])

        model = lib.build(dropping, None, model_name="dropping")
        network = lib.Network([lib.op.tensorop.model.ModelOp(model, "x", "y")])
        batch = {"x": tf.ones((1, 64))}
        return [
            steps(network, [batch], "train", epoch)[0]["y"].numpy().ravel().tolist()
            for epoch in (1, 2)
        ]

    def test_random_numbers_start_over(self, sides: Sides) -> None:
        first, second = self.masks(sides.fastestimator)
        assert first == second

    def test_random_numbers_go_on(self, sides: Sides) -> None:
        first, second = self.masks(sides.fastnet)
        assert first != second
        start_over()
        # and the first epoch is FastEstimator's
        assert first == self.masks(sides.fastestimator)[0]

    @staticmethod
    def name_afterwards(lib: Any) -> Any:
        assert keras.layers.Dense(1).name == "dense"
        steps(copier(lib), [{"x": ONES}], "eval", eager=True)
        return keras.layers.Dense(1).name

    def test_names_of_layers_start_over(self, sides: Sides) -> None:
        assert self.name_afterwards(sides.fastestimator) == "dense"

    def test_names_of_layers_go_on(self, sides: Sides) -> None:
        assert self.name_afterwards(sides.fastnet) == "dense_1"


class TestTraces:
    """Python in an op runs whenever it is traced, and not otherwise."""

    @staticmethod
    def count(lib: Any) -> int:
        times: list[int] = []
        network = of_function(lib, lambda x: (times.append(1), x * 2)[1])
        for epoch in (1, 2):
            data = [{"x": tf.ones((size, 2))} for size in (4, 3, 7, 1)]
            for result in steps(network, data, "infer", epoch):
                assert bool(tf.reduce_all(result["y"] == 2))
        return len(times)

    def test_are_made_for_batch_sizes(self, sides: Sides) -> None:
        assert self.count(sides.fastestimator) > 1

    def test_are_made_for_one_size_and_for_any(self, sides: Sides) -> None:
        assert self.count(sides.fastnet) == 2


class TestFrozenLayersOfInnerModels:
    """A layer of a layer is frozen after the first epoch."""

    @staticmethod
    def trained(lib: Any) -> tuple[Any, Any]:
        inner = mlp()
        model = lib.build(
            lambda: keras.Sequential([keras.layers.Input((6,)), inner]), "sgd", model_name="outer"
        )
        network = trainer(lib, model)
        steps(network, batches(2))
        inner.layers[0].trainable = False
        before = inner.layers[0].get_weights()
        steps(network, batches(2), epoch=2)
        return before, inner.layers[0].get_weights()

    def test_are_trained_on(self, sides: Sides) -> None:
        before, after = self.trained(sides.fastestimator)
        assert not np.array_equal(before[0], after[0])

    def test_are_left_alone(self, sides: Sides) -> None:
        before, after = self.trained(sides.fastnet)
        assert_same(after, before)


class TestLayersThatAreThawed:
    """Optimizers of today's kind take no variables once they are built."""

    @staticmethod
    def trained(lib: Any) -> tuple[Any, Any]:
        def half_frozen() -> Any:
            model = mlp()
            model.layers[0].trainable = False
            return model

        model = lib.build(half_frozen, lambda: keras.optimizers.Adam(0.01), model_name="mlp")
        network = trainer(lib, model)
        steps(network, batches(2), eager=True)
        before = model.layers[0].get_weights()
        model.layers[0].trainable = True
        steps(network, batches(2), epoch=2, eager=True)
        return before, model.layers[0].get_weights()

    def test_are_refused(self, sides: Sides) -> None:
        with pytest.raises(KeyError, match="optimizer cannot recognize variable"):
            self.trained(sides.fastestimator)

    def test_are_trained(self, sides: Sides) -> None:
        before, after = self.trained(sides.fastnet)
        assert not np.array_equal(before[0], after[0])


class TestGradientsAddedUpAndDeferred:
    @staticmethod
    def trained(lib: Any, eager: bool) -> Any:
        start_over()
        model = lib.build(mlp, "adam", model_name="mlp")
        network = trainer(lib, model, merge_grad=2, defer=True)
        return steps(network, batches(5), eager=eager), model

    def test_fail_in_a_graph(self, sides: Sides) -> None:
        with pytest.raises(Exception, match="out of scope"):
            self.trained(sides.fastestimator, eager=False)

    def test_work_in_a_graph(self, sides: Sides) -> None:
        # eagerly FastEstimator can do it
        expected = self.trained(sides.fastestimator, eager=True)
        assert_same(self.trained(sides.fastnet, eager=False), expected, rtol=1e-6)


class TestIntermediateLayers:
    @staticmethod
    def network(lib: Any) -> tuple[Any, Any]:
        model = lib.build(mlp, None, model_name="mlp")
        run = lib.op.tensorop.model.ModelOp
        network = lib.Network(
            [
                run(model, "x", ["y", "inner"], intermediate_layers="hidden"),
                run(model, "x", ["z", "other"], intermediate_layers="hidden"),
            ]
        )
        return network, model

    def test_of_one_op_are_lost_to_the_next(self, sides: Sides) -> None:
        network, model = self.network(sides.fastestimator)
        with pytest.raises(KeyError):
            steps(network, batches(1), "eval", eager=True)
        assert "call" in vars(model.layers[0])  # and the layer is not what it was

    def test_of_both_ops_are_there(self, sides: Sides) -> None:
        network, model = self.network(sides.fastnet)
        (result,) = steps(network, batches(1), "eval", eager=True)
        assert result["inner"].shape == (8, 5)
        assert_same(result["other"], result["inner"])
        assert "call" not in vars(model.layers[0])


class TestDeleteOfAKeyOfTheBatch:
    @staticmethod
    def network(lib: Any) -> Any:
        ops = lib.op.tensorop
        return lib.network.TFNetwork([ops.LambdaOp(lambda x: x + 1, "x", "y"), ops.Delete("x")])

    def test_fails_eagerly(self, sides: Sides) -> None:
        with pytest.raises(KeyError, match="x"):
            steps(self.network(sides.fastestimator), [{"x": ONES}], "eval", eager=True)

    def test_works(self, sides: Sides) -> None:
        (in_a_graph,) = steps(self.network(sides.fastestimator), [{"x": ONES}], "eval")
        for eager in (False, True):
            (result,) = steps(self.network(sides.fastnet), [{"x": ONES}], "eval", eager=eager)
            assert_same(result, in_a_graph)


class AsksWhetherItTrains(keras.Model):  # type: ignore[misc]
    """One input, and an argument that is none."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = keras.layers.Dense(3)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.layer(x) * (2.0 if training else 1.0)


class TestModelsThatAskWhetherTheyTrain:
    @staticmethod
    def results(lib: Any) -> Any:
        def build() -> Any:
            model = AsksWhetherItTrains()
            model(tf.zeros((1, 6)))
            return model

        model = lib.build(build, "sgd", model_name="asks")
        network = trainer(lib, model)
        (batch,) = batches(1)
        expected = model.layer(batch["x"])
        (evaluated,) = steps(network, [batch], "eval", eager=True)
        (trained,) = steps(network, [batch], eager=True)
        return expected, evaluated["y"], trained["y"]

    def test_get_a_batch_in_pieces(self, sides: Sides) -> None:
        with pytest.raises(TypeError, match="multiple values for argument 'training'"):
            self.results(sides.fastestimator)

    def test_are_told(self, sides: Sides) -> None:
        expected, evaluated, trained = self.results(sides.fastnet)
        assert_same(evaluated, expected)
        assert_same(trained, expected * 2)


class TestModelsThatHaveNotSeenAnInput:
    @staticmethod
    def trained(lib: Any, **layer_settings: Any) -> Any:
        def build() -> Any:
            return keras.Sequential([keras.layers.Dense(3, **layer_settings)])

        model = lib.build(build, "adam", model_name="lazy")
        return steps(trainer(lib, model), batches(3)), model

    def test_are_refused(self, sides: Sides) -> None:
        with pytest.raises(ValueError, match="have not yet been created"):
            self.trained(sides.fastestimator)

    def test_are_trained(self, sides: Sides) -> None:
        results, model = self.trained(sides.fastnet)
        start_over()
        # the same model, which knows its input from the start
        expected, other = self.trained(sides.fastestimator, input_shape=(6,))
        assert_same((results, model), (expected, other))


class TestRegularizersInMixedPrecision:
    @staticmethod
    def weights(lib: Any) -> Any:
        def build() -> Any:
            dense = keras.layers.Dense(3, kernel_regularizer=keras.regularizers.l2(0.1))
            return keras.Sequential([keras.layers.Input((6,)), dense])

        model = lib.build(build, "sgd", model_name="regular", mixed_precision=True)
        before = model.get_weights()
        steps(trainer(lib, model), batches(1), eager=True)
        return before, model.get_weights()

    def test_fail(self, sides: Sides) -> None:
        with pytest.raises(tf.errors.InvalidArgumentError, match="half"):
            self.weights(sides.fastestimator)

    def test_count(self, sides: Sides) -> None:
        before, after = self.weights(sides.fastnet)
        batch = batches(1)[0]
        # a step of SGD by hand, in full precision; float16 has 11 bits
        kernel, bias = (tf.Variable(value) for value in before)
        with tf.GradientTape() as tape:
            logits = batch["x"] @ kernel + bias
            losses = tf.nn.softmax_cross_entropy_with_logits(batch["onehot"], logits)
            loss = tf.reduce_mean(losses) + 0.1 * tf.reduce_sum(tf.square(kernel))
        for variable, gradient in zip(
            (kernel, bias), tape.gradient(loss, (kernel, bias)), strict=True
        ):
            variable.assign_sub(0.01 * gradient)
        np.testing.assert_allclose(after[0], kernel.numpy(), atol=1e-4)
        np.testing.assert_allclose(after[1], bias.numpy(), atol=1e-4)


class TestResultsThatAreNoTensors:
    """What an op returns is the same in a graph as eagerly."""

    @staticmethod
    def result(lib: Any, eager: bool) -> Any:
        network = of_function(lib, lambda x: {"x": x, "number": 3, "word": "a", "nothing": None})
        return steps(network, [{"x": ONES}], "infer", eager=eager)[0]["y"]

    def test_become_tensors_in_a_graph(self, sides: Sides) -> None:
        result = self.result(sides.fastestimator, eager=False)
        assert tf.is_tensor(result["number"])
        assert tf.is_tensor(result["word"])

    def test_stay_what_they_are(self, sides: Sides) -> None:
        expected = self.result(sides.fastestimator, eager=True)
        for eager in (False, True):
            assert_same(self.result(sides.fastnet, eager), expected)


class TestErrorsOfOps:
    """An error of the program's own, raised while an op is traced."""

    class Refused(Exception):
        def __init__(self, what: str, code: int) -> None:
            super().__init__(what)
            self.code = code

    def network(self, lib: Any) -> Any:
        class Refusing(lib.op.tensorop.TensorOp):  # type: ignore[misc]
            def forward(_, data: Any, state: Any) -> Any:
                raise self.Refused("not this one", 7)

        return lib.network.TFNetwork([Refusing("x", "y")])

    def test_become_others(self, sides: Sides) -> None:
        with pytest.raises(Exception, match="not this one") as caught:
            steps(self.network(sides.fastestimator), [{"x": ONES}], "eval")
        assert not isinstance(caught.value, self.Refused)

    @pytest.mark.parametrize("eager", [True, False])
    def test_are_what_they_are(self, sides: Sides, eager: bool) -> None:
        with pytest.raises(self.Refused, match=r"^not this one") as caught:
            steps(self.network(sides.fastnet), [{"x": ONES}], "eval", eager=eager)
        assert caught.value.code == 7
        assert "Raised by Refusing (op 0, inputs ['x'], outputs ['y'])." in caught.value.__notes__


class TestUpdatesOfAStepThatFailed:
    """An update is deferred, then an op fails, in the first of two steps."""

    @staticmethod
    def trained(lib: Any, fails: bool) -> Any:
        start_over()
        model = lib.build(mlp, "sgd", model_name="mlp")
        failing = [fails]

        def fn(y: Any) -> Any:
            if failing and failing.pop():
                raise ArithmeticError("once")
            return y

        network = trainer(lib, model, lib.op.tensorop.LambdaOp(fn, "y", "z"), defer=True)
        data = batches(2)
        with network("train", 1, "", eager=True):
            if fails:
                with pytest.raises(ArithmeticError, match="once"):
                    network.run_step(data[0])
            network.run_step(data[1])
        return model.get_weights()

    def test_are_made_in_the_next(self, sides: Sides) -> None:
        fe = sides.fastestimator
        after_one, after_both = self.trained(fe, fails=False), self.trained(fe, fails=True)
        assert not np.array_equal(after_one[0], after_both[0])

    def test_are_discarded(self, sides: Sides) -> None:
        expected = self.trained(sides.fastestimator, fails=False)
        assert_same(self.trained(sides.fastnet, fails=True), expected)


class TestMirroredWindows:
    """Cut out of rows, which are the second axis in TensorFlow, and joined again."""

    @staticmethod
    def result(lib: Any) -> Any:
        network = copier(
            lib,
            slicers=lib.slicer.SlidingSlicer(
                [-1, 2, -1], pad_mode="mirror", slice="x", unslice=["x", "y"]
            ),
        )
        x = tf.reshape(tf.range(10.0), (1, 5, 2))
        return network.transform({"x": x}, mode="eval")["y"], x

    def test_fail(self, sides: Sides) -> None:
        with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
            self.result(sides.fastestimator)

    def test_give_the_image_back(self, sides: Sides) -> None:
        y, x = self.result(sides.fastnet)
        assert_same(y, x)
