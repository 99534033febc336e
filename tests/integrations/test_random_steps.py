"""Steps of random networks over random batches: results, what is missing, what is untouched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.integrations import graphs
from tests.integrations.graphs import Item, Opening
from tests.integrations.sides import Sides, assert_same

batch_keys = st.sets(st.sampled_from(graphs.KEYS), min_size=1)


def arithmetic(item: Item) -> Callable[..., Any]:
    """What an op computes: for each output a number of its own, from all inputs."""

    def fn(*values: Any) -> Any:
        total = sum(values, 1.0 if not values else 0.0) * 0.5
        if item.writes is None:
            return None
        if isinstance(item.writes, str):
            return total + 1
        return [total + number for number in range(len(item.writes))]

    return fn


def make_op(lib: Any, item: Item) -> Any:
    ops = lib.op.tensorop
    if item.kind == "delete":
        return ops.Delete(item.reads, mode=item.mode, ds_id=item.ds_id)
    compute = arithmetic(item)

    def fn(*values: Any) -> Any:
        return compute(*(values or [torch.ones(4, 3)]))

    return ops.LambdaOp(fn, item.reads, item.writes, mode=item.mode, ds_id=item.ds_id)


def make_pop(lib: Any, item: Item) -> Any:
    ops = lib.op.numpyop
    if item.kind == "delete":
        return ops.Delete(item.reads, mode=item.mode, ds_id=item.ds_id)
    compute = arithmetic(item)

    def fn(*values: Any) -> Any:
        return compute(*(values or [np.ones((4, 3), "float32")]))

    return ops.LambdaOp(fn, item.reads, item.writes, mode=item.mode, ds_id=item.ds_id)


def make_slicer(lib: Any, item: Item) -> Any:
    where = {"mode": item.mode, "ds_id": item.ds_id}
    if item.kind == "mean":
        return lib.slicer.MeanUnslicer(item.writes, **where)
    return lib.slicer.AxisSlicer(0, slice=item.reads, unslice=item.writes, **where)


def stepped(network: Any, batch: dict[str, Any], opening: Opening) -> Any:
    before = {key: value.clone() for key, value in batch.items()}
    try:
        with network(opening.mode, opening.epoch, opening.ds_id, opening.wanted):
            result = dict(network.run_step(batch))
    except KeyError:
        return "a key is missing"
    assert_same(batch, before)
    return result


def filled(keys: set[str]) -> dict[str, torch.Tensor]:
    return {
        key: torch.arange(12.0).reshape(4, 3) * (number + 1)
        for number, key in enumerate(graphs.KEYS)
        if key in keys
    }


@settings(max_examples=200)
@given(graphs.ops, graphs.openings, batch_keys)
def test_ops(sides: Sides, ops: list[Any], opening: Opening, keys: set[str]) -> None:
    def program(lib: Any) -> Any:
        made, _ = graphs.built(lib, ops, lambda item: make_op(lib, item))
        always = lib.op.tensorop.TensorOp()  # FastEstimator cannot open a network without ops
        return stepped(lib.network.TorchNetwork([always, *made]), filled(keys), opening)

    sides.agree(program)


def deletable(entries: list[Any]) -> set[str]:
    """Keys that some op would delete."""
    keys: set[str] = set()
    for entry in entries:
        scheduled = getattr(entry, "values", [entry])
        for item in scheduled.values() if isinstance(scheduled, dict) else scheduled:
            if item is not None and item.kind == "delete":
                keys.update(item.reads)  # a string's letters are its only key
    return keys


@settings(max_examples=200)
@given(graphs.ops, graphs.pops, graphs.openings, batch_keys)
def test_postprocessing(
    sides: Sides, ops: list[Any], pops: list[Any], opening: Opening, keys: set[str]
) -> None:
    # see test_mended.py for what becomes of other keys that are deleted
    deleted = deletable(pops)
    keys = keys - deleted
    assume(opening.wanted or not deleted)

    def program(lib: Any) -> Any:
        made, _ = graphs.built(lib, ops, lambda item: make_op(lib, item))
        after, _ = graphs.built(lib, pops, lambda item: make_pop(lib, item))
        always = lib.op.tensorop.TensorOp()
        network = lib.network.TorchNetwork([always, *made], after)
        return stepped(network, filled(keys), opening)

    sides.agree(program)


@settings(max_examples=200)
@given(graphs.ops, graphs.slicers, graphs.openings, batch_keys)
def test_slicers(
    sides: Sides, ops: list[Any], slicers: list[Any], opening: Opening, keys: set[str]
) -> None:
    def program(lib: Any) -> Any:
        made, _ = graphs.built(lib, ops, lambda item: make_op(lib, item))
        cutters, _ = graphs.built(lib, slicers, lambda item: make_slicer(lib, item))
        always = lib.op.tensorop.TensorOp()
        network = lib.network.TorchNetwork([always, *made], slicers=cutters)
        try:
            return stepped(network, filled(keys), opening)
        except (ValueError, IndexError, RuntimeError) as error:
            return type(error).__name__

    sides.agree(program)
