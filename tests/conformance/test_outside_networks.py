"""Ops that no network has built: their constructor, then `forward`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.augmentation import CutMixBatch, MixUpBatch
from fastnet.op.tensorop.loss import MeanSquaredError, SuperLoss
from fastnet.op.tensorop.meta import OneOf, Repeat, Sometimes
from fastnet.op.tensorop.model import UpdateOp
from tests.conformance.agreement import assert_same
from tests.conformance.catalogue import ROWS, Row
from tests.conformance.frameworks import FRAMEWORKS, Array, Framework


@contextlib.contextmanager
def by_hand(framework: Framework) -> Iterator[dict[str, Any]]:
    """Return the state that a program makes up for ops that it calls itself."""
    state = {
        "mode": "train",
        "epoch": 1,
        "warmup": False,
        "req_grad": True,
        "eager": True,
        "tape": None,
        "deferred": {},
    }
    if framework.target == "torch":
        yield state
        return
    with tf.GradientTape(persistent=True) as tape:
        yield {**state, "tape": tape}


def run(ops: Sequence[Any], store: dict[str, Any], state: dict[str, Any]) -> None:
    """Call ops in turn, as a loop written by hand does."""
    for op in ops:
        data = [store[key] for key in op.inputs]
        result = op.forward(data if op.in_list else data[0], state)
        keep(op, result, store)


def keep(op: Any, result: Any, store: dict[str, Any]) -> None:
    """Store what an op returned, if it writes anything."""
    if op.outputs:
        store.update(zip(op.outputs, result if op.out_list else [result], strict=True))


def read(framework: Framework, value: Any) -> Array:
    return framework.array(value.detach() if framework.target == "torch" else value)


def check_values(row: Row, result: Mapping[str, Array]) -> None:
    """Compare what ops have written with what numpy makes of the batch."""
    if row.check:
        row.check(row.batch, result, 1e-5)
        return
    assert row.compute
    wide = {
        key: value.astype("float64") if value.dtype.kind == "f" else value
        for key, value in row.batch.items()
    }
    expected = row.compute(wide)
    assert expected.keys() == result.keys()
    for key, value in expected.items():
        assert result[key].shape == np.shape(value)
        np.testing.assert_allclose(result[key], value, 1e-5, 1e-5)


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize("name", ["torch", "tf-eager"])
def test_tensor_ops(name: str, row: Row) -> None:
    fw = FRAMEWORKS[name]
    store = fw.tensors(row.batch_for(fw))
    ops = row.ops(fw)
    with by_hand(fw) as state:
        run(ops, store, state)
    result = row.channels_last(fw, {key: read(fw, store[key]) for key in row.writes})
    check_values(row, result)
    if row.cls is UpdateOp:
        in_a_network, op = row.network(fw)
        fw.step(in_a_network, row.batch_for(fw), "train")
        assert_same(fw.weights(ops[-1].model), fw.weights(op.model))
        with pytest.raises(AssertionError):
            assert_same(fw.weights(ops[-1].model), fw.weights(row.ops(fw)[-1].model))


@pytest.mark.parametrize(
    "op",
    [
        OneOf(LambdaOp(lambda x: x, "x", "x"), LambdaOp(lambda x: -x, "x", "x")),
        Sometimes(LambdaOp(lambda x: x, "x", "x")),
        Repeat(LambdaOp(lambda x: x, "x", "x"), repeat=lambda x: False),
        MixUpBatch(("x", "y"), ("x", "y")),
        CutMixBatch(("x", "y"), ("x", "y")),
        SuperLoss(MeanSquaredError(("x", "y"), "z")),
    ],
    ids=lambda op: type(op).__name__,
)
def test_arrays_where_an_op_needs_tensors(op: Any) -> None:
    array = np.ones((2, 4, 4, 3), "float32")
    with pytest.raises(TypeError) as caught:
        op.forward([array] * len(op.inputs), {"mode": "train", "warmup": False})
    assert "runs on tensors of torch or TensorFlow, but got an array" in str(caught.value)
