"""What fastnet does differently in TensorFlow, each beside the fault that FastEstimator 1.7.0 has.

One class a fault. The first test of each shows FastEstimator's, so that it is noticed if it goes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
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

    def test_of_c_code_is_seen(self, sides: Sides, capfd: pytest.CaptureFixture[str]) -> None:
        for lib, expected in ((sides.fastestimator, ""), (sides.fastnet, "from below\n")):
            network = of_function(lib, lambda x: (os.write(1, b"from below\n"), x)[1])
            steps(network, [{"x": ONES}], "infer", eager=True)
            assert capfd.readouterr().out == expected


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
