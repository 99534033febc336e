"""Random networks in TensorFlow, run eagerly, over random batches."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import assume, given, settings

from tests.integrations import graphs
from tests.integrations.graphs import Item, Opening
from tests.integrations.sides import Sides
from tests.integrations.test_random_steps import (
    arithmetic,
    batch_keys,
    deletable,
    make_pop,
    make_slicer,
)
from tests.integrations.tf_sides import (
    MARKS,
    assert_same,
    tf,
)

pytestmark = MARKS


def make_op(lib: Any, item: Item) -> Any:
    ops = lib.op.tensorop
    if item.kind == "delete":
        return ops.Delete(item.reads, mode=item.mode, ds_id=item.ds_id)
    compute = arithmetic(item)

    def fn(*values: Any) -> Any:
        return compute(*(values or [tf.ones((4, 3))]))

    return ops.LambdaOp(fn, item.reads, item.writes, mode=item.mode, ds_id=item.ds_id)


def stepped(network: Any, batch: dict[str, Any], opening: Opening, eager: bool) -> Any:
    before = dict(batch)
    try:
        with network(opening.mode, opening.epoch, opening.ds_id, opening.wanted, eager=eager):
            # a second step, which in a graph traces nothing
            result = [dict(network.run_step(batch)) for _ in range(2)]
    except KeyError:
        return "a key is missing"
    assert batch.keys() == before.keys()
    assert all(batch[key] is before[key] for key in batch)
    return result


def filled(keys: set[str]) -> dict[str, Any]:
    return {
        key: tf.constant(np.arange(12.0).reshape(4, 3) * (number + 1), tf.float32)
        for number, key in enumerate(graphs.KEYS)
        if key in keys
    }


def compare(
    sides: Sides,
    drawn: tuple[list[Any], list[Any], list[Any]],
    opening: Opening,
    keys: set[str],
    eager: bool,
) -> None:
    if eager:
        # FastEstimator cannot delete a key of the batch eagerly: see test_tf_mended.py
        keys = keys - deletable(drawn[0])
    results = []
    for lib in (sides.fastestimator, sides.fastnet):
        ops, _ = graphs.built(lib, drawn[0], lambda item, lib=lib: make_op(lib, item))
        pops, _ = graphs.built(lib, drawn[1], lambda item, lib=lib: make_pop(lib, item))
        slicers, _ = graphs.built(lib, drawn[2], lambda item, lib=lib: make_slicer(lib, item))
        always = lib.op.tensorop.TensorOp()  # FastEstimator cannot open a network without ops
        network = lib.network.TFNetwork([always, *ops], pops, slicers)
        try:
            results.append(stepped(network, filled(keys), opening, eager))
        except (ValueError, IndexError) as error:
            results.append(type(error).__name__)
    assert_same(results[1], results[0])


@settings(max_examples=60)
@given(graphs.ops, graphs.openings, batch_keys)
def test_ops(sides: Sides, ops: list[Any], opening: Opening, keys: set[str]) -> None:
    compare(sides, (ops, [], []), opening, keys, eager=True)


@settings(max_examples=60)
@given(graphs.ops, graphs.pops, graphs.openings, batch_keys)
def test_postprocessing(
    sides: Sides, ops: list[Any], pops: list[Any], opening: Opening, keys: set[str]
) -> None:
    # see test_mended.py for what becomes of other keys that are deleted
    deleted = deletable(pops)
    assume(opening.wanted or not deleted)
    compare(sides, (ops, pops, []), opening, keys - deleted, eager=True)


@settings(max_examples=60)
@given(graphs.ops, graphs.slicers, graphs.openings, batch_keys)
def test_slicers(
    sides: Sides, ops: list[Any], slicers: list[Any], opening: Opening, keys: set[str]
) -> None:
    compare(sides, (ops, [], slicers), opening, keys, eager=True)
