"""What networks of Keras models keep, and what they let go of."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
from tests.network.keras_models import batches, infer, keras, line, regression, tf, train
from tests.network.tf_programs import Counting, ones

pytestmark = pytest.mark.tf


@pytest.fixture(autouse=True)
def only_what_a_test_makes() -> None:
    """Let the collector look at nothing that was there before, which takes a second each time."""
    gc.collect()
    gc.freeze()


def objects() -> list[Any]:
    """List the objects that a test has made, and that may hold others."""
    for _ in range(2):
        gc.collect()
    return gc.get_objects()


def graphs() -> int:
    """Count the graphs of functions that a test has made."""
    return sum(type(one).__name__ == "FuncGraph" for one in objects())


def test_traces_that_fail_leave_nothing_behind() -> None:
    kept: list[Any] = []

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def double(x: Any) -> Any:
        return x * 2, lambda gradient: gradient * 2

    def keep(x: Any) -> Any:
        y = double(x)
        if not kept:
            kept.append(y)
        return kept[0]

    network = TFNetwork(LambdaOp(keep, "x", "y"), dynamic=False)
    infer(network, {"x": ones(1)})
    counts = []
    for size in range(2, 8):
        with network("infer", 1), pytest.raises(TypeError, match="of another graph"):
            network.run_step({"x": ones(size)})
        counts.append(graphs())
    assert counts[-1] == counts[1]


class TestEpochs:
    @pytest.mark.parametrize("way", ["static", "eager", "compiled"])
    def test_leave_nothing_behind(self, way: str) -> None:
        eager, count = way == "eager", 230 if way == "static" else 60
        model = fastnet.build(line, RepeatScheduler([lambda: keras.optimizers.SGD(0.1)] * 2))
        noise = LambdaOp(lambda x: x + 1, "x", "x")
        ops = [EpochScheduler({1: None, 2: noise}), *regression(model)]
        network = TFNetwork(ops, compile=way == "compiled")
        data = [{"x": ones(size, 2), "name": "a"} for size in (2, 1)]

        def run(start: int, end: int) -> tuple[int, int]:
            for epoch in range(start, end):
                train(network, data[:1], epoch=epoch, eager=eager)
                train(network, data[1:], mode="eval", epoch=epoch, eager=eager)
            return graphs(), len(objects())

        run(1, 10)
        warm = run(10, 30)
        end = run(30, count)
        assert end[0] == warm[0]
        # interned names, caches of TensorFlow's own: nothing for each epoch
        assert end[1] - warm[1] < (count - 30) / 10
        assert len(network.traces) == (0 if eager else 4 + 1)


class TestSteps:
    @pytest.mark.parametrize("eager", [False, True], ids=["static", "eager"])
    def test_hold_no_tensor(self, eager: bool) -> None:
        model = fastnet.build(line, "sgd")
        network = TFNetwork([*regression(model), LambdaOp(lambda y: [y, {"y": y}], "y", "nest")])
        kept: list[weakref.ref[Any]] = []
        with network(mode="train", epoch=1, eager=eager):
            for size in (2, 3):
                batch = {"x": tf.random.uniform((size, 2))}
                result = network.run_step(batch)
                values = [batch["x"], result["y"], result["loss"], *result["nest"][:1]]
                kept += map(weakref.ref, values)
                del batch, result, values
            gc.collect()
            assert [one() for one in kept] == [None] * 8

    @pytest.mark.filterwarnings("ignore:The ops of mode")
    def test_of_ever_new_constants_keep_sixteen_graphs(self) -> None:
        op = Counting("x", "y")
        network = TFNetwork(op)
        with network(mode="infer", epoch=1):
            for number in range(40):
                network.run_step({"x": number, "z": ones(2)})
        assert op.runs == 40
        assert graphs() == 16


class TestGone:
    def test_with_their_network(self) -> None:
        model = fastnet.build(line, "sgd")
        network = TFNetwork(regression(model))
        (data,) = batches(1)
        data["x"] = data["x"][:, :2]
        train(network, [data])
        train(network, [data], mode="eval")
        network.transform([data], "infer")
        alive = [weakref.ref(network), weakref.ref(network.ops[1])]
        assert graphs() == 3
        del network
        assert graphs() == 0
        assert [one() for one in alive] == [None, None]
        # the model is the program's, and goes on
        again = TFNetwork(regression(model))
        train(again, [data])
        assert graphs() == 1

    def test_with_their_plans(self) -> None:
        network = TFNetwork(Counting("x", "y"))
        for mode in ("infer", "eval"):
            infer(network, {"x": ones(2)}, mode)
        assert graphs() == 2
        network.retrace()
        assert graphs() == 0
        infer(network, {"x": ones(2)})
        assert graphs() == 1
