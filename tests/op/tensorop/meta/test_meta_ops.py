"""Ops around others: their keys, and errors and lifetimes of what they run in a row."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

import fastnet
from fastnet.op.tensorop import Delete, LambdaOp
from fastnet.op.tensorop.meta import Fuse, OneOf, Repeat, Sometimes


class Value:
    """What can be watched."""


def step(op: Any, batch: dict[str, Any]) -> dict[str, Any]:
    network = fastnet.Network([op])
    with network("train", 1):
        return dict(network.run_step(batch))


def op(inputs: Any = "x", outputs: Any = "x", **rest: Any) -> LambdaOp:
    return LambdaOp(lambda *values: values, inputs, outputs, **rest)


class TestDeletes:
    def test_what_is_deleted_again_is_no_output(self) -> None:
        ops = [
            LambdaOp(lambda x: x + 1, "x", "y"),
            LambdaOp(lambda y: 2 * y, "y", "z"),
            Delete("y"),
        ]
        fused = Fuse(ops)
        assert (fused.inputs, fused.outputs) == (["x"], ["z"])
        assert fused.forward([torch.tensor(1)], {}) == [4]
        again = Fuse([*ops, LambdaOp(lambda z: -z, "z", "y")])
        assert (again.inputs, again.outputs) == (["x"], ["z", "y"])
        assert again.forward([torch.tensor(1)], {}) == [4, -4]


@pytest.mark.parametrize("read", ["y", ["y", "w"]])
def test_a_value_is_dropped_once_it_was_read_for_the_last_time(read: Any) -> None:
    made: list[weakref.ref[Value]] = []
    alive: list[int] = []

    def make(*values: Any) -> Value:
        gc.collect()
        alive.append(sum(one() is not None for one in made))
        value = Value()
        made.append(weakref.ref(value))
        return value

    ops = [
        LambdaOp(make, "w", "y"),
        LambdaOp(make, "y", "y"),
        LambdaOp(make, read, "y"),
        LambdaOp(make, "w", "w"),
    ]
    Fuse(ops).forward([Value()], {})
    # an op's input, and nothing that was there before it
    assert alive == [0, 1, 1, 1]


class Doubling(Fuse):
    """An op around others with a forward of its own."""

    def forward(self, data: list[Any], state: dict[str, Any]) -> Any:
        return [2 * value for value in super().forward(data, state)]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda op: op,
        lambda op: Fuse([op]),
        lambda op: Repeat(op, 1),
        lambda op: Sometimes(op, 1.0),
        lambda op: OneOf(op, op),
    ],
)
def test_a_derived_forward_is_called(wrap: Any) -> None:
    op = Doubling([LambdaOp(lambda x: x + 1, "x", "x")])
    result = step(wrap(op), {"x": torch.ones(2)})
    assert result["x"].tolist() == [4.0, 4.0]
