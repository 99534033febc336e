"""Steps inside functions, tapes, devices and threads of the program's own."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp
from tests.network.keras_models import (
    assert_close,
    batches,
    classify,
    infer,
    keras,
    line,
    loop,
    mlp,
    regression,
    supervised,
    tf,
    to_zero,
    train,
    twins,
)
from tests.network.tf_programs import EITHER_WAY, Counting, Doing, first, ones, reasons

pytestmark = pytest.mark.tf


EACH_WAY = pytest.mark.parametrize(
    ("eager", "compile"),
    [(False, False), (True, False), (False, True)],
    ids=["static", "eager", "compiled"],
)


def sgd() -> Any:
    return keras.optimizers.SGD(0.1)


class TestInAFunction:
    """A `tf.function` of the program's own around steps."""

    @EACH_WAY
    def test_that_is_opened_around_it(self, eager: bool, compile: bool) -> None:
        network = TFNetwork([LambdaOp(lambda x: x * 2, "x", "y")], compile=compile)

        @tf.function
        def step(x: Any) -> Any:
            result = network.run_step({"x": x, "name": "a"})
            assert result["name"] == "a"
            return result["y"] + 1

        with network(mode="infer", epoch=1, eager=eager):
            for x in (ones(2), ones(3), ones(2, 2)):
                assert np.array_equal(step(x), np.full(x.shape, 3.0))
        assert len(network.traces) == (0 if eager else 3)

    @EITHER_WAY
    def test_that_it_is_opened_in(self, eager: bool) -> None:
        network = TFNetwork(
            Doing(lambda x, state: x * tf.cast(state["epoch"], "float32"), "x", "y")
        )

        @tf.function
        def step(x: Any) -> Any:
            with network(mode="infer", epoch=3, eager=eager):
                return network.run_step({"x": x})["y"]

        assert step(ones(2)).numpy().tolist() == [3.0, 3.0]
        assert infer(network, {"x": ones(2)})["y"].numpy().tolist() == [1.0, 1.0]
        assert [trace.epoch for trace in network.traces] == [1 if eager else 3]

    @EITHER_WAY
    def test_that_trains(self, eager: bool) -> None:
        model, twin = twins(mlp)
        fastnet.build(lambda: model, sgd)
        network = TFNetwork(supervised(model))
        data = batches(4)

        @tf.function
        def step(batch: Any) -> Any:
            return network.run_step(batch)["loss"]

        with network(mode="train", epoch=1, eager=eager):
            for batch in data:
                step(batch)
        loop(twin, sgd(), data, classify)
        assert_close(model, twin)

    def test_that_is_gone_leaves_what_was_traced(self) -> None:
        op = Counting("x", "y")
        network = TFNetwork(op)
        with network(mode="infer", epoch=1):
            for _ in range(2):
                step = tf.function(lambda x: network.run_step({"x": x})["y"])
                assert step(ones(2)).numpy().tolist() == [1.0, 1.0]
                del step
            assert network.run_step({"x": ones(2)})["y"].shape == (2,)
        assert op.runs == 1

    def test_of_a_dataset(self) -> None:
        network = TFNetwork(LambdaOp(lambda x: x * 2, "x", "y"))
        with network(mode="infer", epoch=1):
            data = tf.data.Dataset.range(5).batch(2).map(lambda x: network.run_step({"x": x}))
            results = [element["y"].numpy().tolist() for element in data]
        assert results == [[0, 2], [4, 6], [8]]


class TestUnderATape:
    @EACH_WAY
    def test_gradients_of_results_arrive(self, eager: bool, compile: bool) -> None:
        network = TFNetwork(LambdaOp(lambda x: x**3, "x", "y"), compile=compile)
        x = tf.constant([1.0, 2.0])
        with network(mode="infer", epoch=1, eager=eager):
            network.run_step({"x": x})
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = network.run_step({"x": x})["y"]
            assert tape.gradient(y, x).numpy().tolist() == [3.0, 12.0]
            assert network.run_step({"x": x})["y"].numpy().tolist() == [1.0, 8.0]
        assert len(network.traces) == (0 if eager else 1)

    @EITHER_WAY
    def test_of_weights_and_of_higher_order(self, eager: bool) -> None:
        model, twin = twins(line)
        fastnet.build(lambda: model, None)
        network = TFNetwork([ModelOp(model, "x", "y"), LambdaOp(lambda y: y**2, "y", "z")])
        x = ones(3, 2)
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                z = infer(network, {"x": x}, eager=eager)["z"]
            inner = tape.gradient(z, model.trainable_variables)
        second = outer.gradient(inner[0], x)
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                z = twin(x) ** 2
            wanted = tape.gradient(z, twin.trainable_variables)
        np.testing.assert_allclose(inner[0], wanted[0], rtol=1e-5)
        np.testing.assert_allclose(inner[1], wanted[1], rtol=1e-5)
        np.testing.assert_allclose(second, outer.gradient(wanted[0], x), rtol=1e-5)

    @EITHER_WAY
    def test_a_step_that_takes_gradients_itself(self, eager: bool) -> None:
        model, twin = twins(line)
        fastnet.build(lambda: model, sgd)
        network = TFNetwork(regression(model))
        x = ones(3, 2)
        with tf.GradientTape() as tape:
            tape.watch(x)
            (result,) = train(network, [{"x": x}], eager=eager)
        with tf.GradientTape() as own:
            own.watch(x)
            wanted = to_zero(twin(x), {})
        np.testing.assert_allclose(
            tape.gradient(result["loss"], x), own.gradient(wanted, x), rtol=1e-5
        )
        loop(twin, sgd(), [{"x": x}], to_zero)
        assert_close(model, twin)


def test_run_functions_eagerly_is_obeyed() -> None:
    op = Counting("x", "y")
    network = TFNetwork(op)
    tf.config.run_functions_eagerly(True)
    try:
        for _ in range(3):
            infer(network, {"x": ones(2)})
        assert op.runs == 3
        list(network.transform([{"x": ones(2)}], "infer"))
        network.transform({"x": ones(2)}, "infer")
        assert op.runs == 5
    finally:
        tf.config.run_functions_eagerly(False)
    for _ in range(3):
        infer(network, {"x": ones(2)})
    assert op.runs == 6
    assert reasons(network) == [first()]


def test_two_networks_train_side_by_side() -> None:
    makers = [twins(mlp, seed) for seed in (1, 2)]
    networks = []
    for number, (model, _) in enumerate(makers):
        fastnet.build(lambda model=model: model, sgd, model_name=f"side{number}")
        networks.append(TFNetwork(supervised(model)))
    data = [batches(4, seed=seed) for seed in (1, 2)]
    problems: list[BaseException] = []
    ready = threading.Barrier(2)

    def run(number: int) -> None:
        try:
            ready.wait(300)
            for epoch in (1, 2):
                train(networks[number], data[number], epoch=epoch)
                train(networks[number], data[number], mode="eval", epoch=epoch)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    for (model, twin), batches_, network in zip(makers, data, networks, strict=True):
        loop(twin, sgd(), batches_ * 2, classify)
        assert_close(model, twin)
        assert reasons(network) == [first("train"), first("eval")]
