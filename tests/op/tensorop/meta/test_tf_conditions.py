"""Ops with conditions and loops over tensors, inside of other ops: in a graph as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.meta import Fuse, OneOf, Repeat, Sometimes

tf = pytest.importorskip("tensorflow")

from tests.network.tf_programs import EITHER_WAY

pytestmark = pytest.mark.tf


class Branching(TensorOp):
    """Doubles what is positive in sum, and shifts the rest."""

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        if tf.reduce_sum(data) > 0:
            return data * 2.0
        return data - 1.0


class Looping(TensorOp):
    """Adds up until there is enough."""

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        result = data
        while tf.reduce_sum(tf.abs(result)) < 10.0:
            result = result * 2.0
        return result


def halve(x: Any) -> Any:
    if tf.reduce_max(x) > 1.0:
        x = x / 2.0
    else:
        x = x * 4.0
    return x


def by_hand(kind: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if kind == "branching":
        return x * 2 if x.sum() > 0 else x - 1
    if kind == "looping":
        while np.abs(x).sum() < 10:
            x = x * 2
        return x
    return x / 2 if x.max() > 1 else x * 4


OPS: dict[str, Callable[[], Any]] = {
    "branching": lambda: Branching("x", "x"),
    "looping": lambda: Looping("x", "x"),
    "lambda": lambda: LambdaOp(halve, "x", "x"),
}
# what is put around an op, and how often it then runs
AROUND: dict[str, tuple[Callable[[Any], Any], int]] = {
    "OneOf of two": (lambda op: OneOf(op, op), 1),
    "Sometimes": (lambda op: Sometimes(op, 1.0), 1),
    "never": (lambda op: Sometimes(op, 0.0), 0),
    "Fuse": (lambda op: Fuse([op, op]), 2),
    "Repeat": (lambda op: Repeat(op, 3), 3),
    "OneOf in Fuse": (lambda op: Fuse([OneOf(op, op), op]), 2),
    "Fuse in OneOf": (lambda op: OneOf(Fuse([op, op]), Fuse([op, op])), 2),
    "Sometimes in Repeat": (lambda op: Repeat(Sometimes(op, 1.0), 2), 2),
    "OneOf in OneOf in Fuse": (lambda op: Fuse([OneOf(OneOf(op, op))]), 1),
}


@EITHER_WAY
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("kind", OPS)
def test_conditions_over_tensors(kind: str, around: str, eager: bool) -> None:
    wrap, times = AROUND[around]
    network = TFNetwork(wrap(OPS[kind]()))
    with network(mode="infer", epoch=1, eager=eager):
        for start in ([1.0, 2.0], [-3.0, 0.5], [0.25, 0.5]):
            wanted = np.array(start, "float32")
            result = network.run_step({"x": tf.constant(start)})["x"]
            for _ in range(times):
                wanted = by_hand(kind, wanted)
            np.testing.assert_allclose(result, wanted)


def test_gradients_through_a_branch() -> None:
    network = TFNetwork([OneOf(Branching("x", "y"))])
    for sign, wanted in ((1.0, 2.0), (-1.0, 1.0)):
        value = tf.constant([sign])
        with network(mode="infer", epoch=1), tf.GradientTape() as tape:
            tape.watch(value)
            result = network.run_step({"x": value})["y"]
        assert float(tape.gradient(result, value)[0]) == wanted
