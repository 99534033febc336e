"""Steps of random networks over random batches: results, missing keys, and untouched batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.integrations import graphs
from tests.integrations.graphs import Context, Item
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


def make_op(ops: Any, item: Item, nothing: Any) -> Any:
    """Make an op of a package; one that reads nothing computes from `nothing`."""
    if item.kind == "delete":
        return ops.Delete(item.reads, mode=item.mode, ds_id=item.ds_id)
    compute = arithmetic(item)

    def fn(*values: Any) -> Any:
        return compute(*(values or [nothing]))

    return ops.LambdaOp(fn, item.reads, item.writes, mode=item.mode, ds_id=item.ds_id)


def make_slicer(lib: Any, item: Item) -> Any:
    where = {"mode": item.mode, "ds_id": item.ds_id}
    if item.kind == "mean":
        return lib.slicer.MeanUnslicer(item.writes, **where)
    return lib.slicer.AxisSlicer(0, slice=item.reads, unslice=item.writes, **where)


def filled(fw: Any, keys: set[str]) -> dict[str, Any]:
    return {
        key: fw.tensor(np.arange(12, dtype="float32").reshape(4, 3) * (number + 1))
        for number, key in enumerate(graphs.KEYS)
        if key in keys
    }


def stepped(fw: Any, network: Any, keys: set[str], context: Context) -> Any:
    batch = filled(fw, keys)
    before = dict(batch)
    try:
        with network(context.mode, context.epoch, context.ds_id, context.wanted, eager=True):
            result = [dict(network.run_step(batch)) for _ in range(2)]
    except KeyError:
        return "a key is missing"
    except (ValueError, IndexError, RuntimeError) as error:
        return type(error).__name__
    assert list(batch) == list(before)
    assert all(batch[key] is before[key] for key in before)
    assert_same(batch, filled(fw, keys))
    return result


def deletable(entries: list[Any]) -> set[str]:
    """Keys that some op would delete."""
    keys: set[str] = set()
    for entry in entries:
        scheduled = getattr(entry, "values", [entry])
        for item in scheduled.values() if isinstance(scheduled, dict) else scheduled:
            if item is not None and item.kind == "delete":
                keys.update(item.reads)  # a string's letters are its only key
    return keys


def compare(
    sides: Sides,
    fw: Any,
    drawn: tuple[list[Any], list[Any], list[Any]],
    context: Context,
    keys: set[str],
) -> None:
    """Compare the steps of networks of drawn ops, postprocessing and slicers."""
    if fw.NAME == "tf":
        # FastEstimator cannot delete a key of the batch eagerly
        keys = keys - deletable(drawn[0])
    results = []
    for lib in (sides.fastestimator, sides.fastnet):
        ones = np.ones((4, 3), "float32")
        make = partial(make_op, lib.op.tensorop, nothing=fw.tensor(ones))
        ops = graphs.built(lib, drawn[0], make)
        pops = graphs.built(lib, drawn[1], partial(make_op, lib.op.numpyop, nothing=ones))
        slicers = graphs.built(lib, drawn[2], partial(make_slicer, lib))
        always = lib.op.tensorop.TensorOp()  # FastEstimator cannot open a network without ops
        network = fw.network_class(lib)([always, *ops], pops, slicers)
        results.append(stepped(fw, network, keys, context))
    assert_same(results[1], results[0])


@settings(max_examples=50)
@given(graphs.ops, graphs.pops, graphs.contexts, batch_keys)
def test_postprocessing(
    sides: Sides, fw: Any, ops: list[Any], pops: list[Any], context: Context, keys: set[str]
) -> None:
    # FastEstimator fails at, or keeps, other keys that are deleted
    deleted = deletable(pops)
    assume(context.wanted or not deleted)
    compare(sides, fw, (ops, pops, []), context, keys - deleted)


@settings(max_examples=50)
@given(graphs.ops, graphs.slicers, graphs.contexts, batch_keys)
def test_slicers(
    sides: Sides, fw: Any, ops: list[Any], slicers: list[Any], context: Context, keys: set[str]
) -> None:
    compare(sides, fw, (ops, [], slicers), context, keys)
