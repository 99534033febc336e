"""Copies and pickles of every op, slicer and scheduler, alone and in a network."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fastnet.op.tensorop import LambdaOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
from tests.conformance.catalogue import ROWS, Row
from tests.conformance.frameworks import Framework
from tests.conformance.numpy_catalogue import NUMPY_ROWS


class Pickler(pickle.Pickler):
    """Pickles lambdas, which the catalogue is full of, as what is found in the same process."""

    def persistent_id(self, value: Any) -> int | None:
        if getattr(value, "__name__", "") != "<lambda>":
            return None
        LAMBDAS[id(value)] = value
        return id(value)


class Unpickler(pickle.Unpickler):
    def persistent_load(self, key: int) -> Any:
        return LAMBDAS[key]


LAMBDAS: dict[int, Any] = {}


def pickled(value: Any) -> Any:
    file = io.BytesIO()
    Pickler(file).dump(value)
    file.seek(0)
    return Unpickler(file).load()


Way = Callable[[Any], Any]
ways = pytest.mark.parametrize("way", [copy.deepcopy, pickled], ids=["copied", "pickled"])


@ways
@pytest.mark.parametrize("row", [*ROWS, *NUMPY_ROWS], ids=str)
# Traces are not copied, so graphs need no case of their own.
@pytest.mark.parametrize("fw", ["torch", "tf-eager"], indirect=True)
def test_every_op(fw: Framework, row: Row, way: Way) -> None:
    network, op = row.network(fw)
    held = [value for one in network.ops for value in vars(one).values()]
    if not fw.copies_optimizers and any(hasattr(value, "fe_compiled") for value in held):
        pytest.skip("copying optimizers needs Keras 3")
    batch = row.batch_for(fw)
    # Copies are made of ops that have already run.
    fw.step(network, batch)
    other = way(network)
    twin = (other.postprocessing if row.on_arrays else other.ops)[-1]
    assert type(twin) is type(op)
    assert twin is not op
    assert (twin.inputs, twin.outputs, twin.mode, twin.ds_id) == (
        op.inputs,
        op.outputs,
        op.mode,
        op.ds_id,
    )
    result = row.channels_last(fw, fw.step(other, batch))
    if row.compute is not None:
        for key, expected in row.compute(row.batch).items():
            np.testing.assert_allclose(result[key], expected, rtol=2e-4, atol=2e-4)
    elif row.check is not None:
        row.check(row.batch, result, 2e-4)
    alone = way(op)
    assert type(alone) is type(op)
    # The network notes on its op what was resolved.
    assert vars(alone).keys() == vars(op).keys() - {"_last_resolved"}


def twice(x: Any) -> Any:
    return 2 * x


@ways
def test_schedulers_of_ops(fw: Framework, way: Way) -> None:
    ops = [LambdaOp(twice, "x", "y"), LambdaOp(abs, "x", "y")]
    network = fw.network([RepeatScheduler([*ops, None]), EpochScheduler({4: ops[0]})])
    other = way(network)
    batch = {"x": np.array([-1.0, 2.0], "float32")}
    wanted = {1: [-2.0, 4.0], 2: [1.0, 2.0], 3: None, 6: [-2.0, 4.0]}
    for epoch, value in wanted.items():
        result = fw.step(other, batch, epoch=epoch)
        assert ("y" in result) == (value is not None)
        if value is not None:
            np.testing.assert_array_equal(result["y"], value)
    # An op that stands in two schedulers is copied once.
    assert other.ops[0].get_current_value(1) is other.ops[1].get_current_value(4)
