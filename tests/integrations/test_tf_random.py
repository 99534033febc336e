"""Random networks in TensorFlow: steps over random batches, and random training programs.

Most run eagerly, where FastEstimator is fast; some in graphs, which it traces anew for each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

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
from tests.integrations.test_random_training import (
    NAMES,
    Run,
    Update,
    make_network,
    optimizers,
    runs,
    scheduled,
    updates,
)
from tests.integrations.tf_sides import (
    MARKS,
    assert_same,
    batches,
    momenta,
    run,
    steps,
    tf,
)

pytestmark = MARKS

keras = tf.keras


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


@settings(max_examples=20)
@given(graphs.ops, graphs.openings, batch_keys)
def test_ops_in_a_graph(sides: Sides, ops: list[Any], opening: Opening, keys: set[str]) -> None:
    compare(sides, (ops, [], []), opening, keys, eager=False)


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


# ---------------------------------------------------------------------- training


def layer(inputs: int, outputs: int) -> Any:
    return keras.Sequential([keras.layers.Input((inputs,)), keras.layers.Dense(outputs)])


def mean_loss(code: Any, y: Any) -> Any:
    return tf.reduce_mean(tf.square(code)) + tf.reduce_mean(tf.abs(y))


def trained(
    lib: Any, drawn: list[Update], program_runs: list[Run], choice: list[Any], eager: bool
) -> Any:
    models = lib.build(
        lambda: [layer(6, 4), layer(4, 3)],
        [scheduled(lib, one) for one in choice],
        model_name=list(NAMES),
    )
    network = make_network(lib, models, drawn, mean_loss)
    told: list[Any] = []
    for each in program_runs:
        told.append(
            steps(
                network,
                batches(each.count, seed=each.epoch),
                each.mode,
                each.epoch,
                each.ds_id,
                each.wanted,
                warmup=each.warmup,
                eager=eager,
            )
        )
        told.append([model.get_weights() for model in models])
    return told, [momenta(model) for model in models]


@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(updates, runs, st.tuples(optimizers, optimizers).map(list))
def test_any_training(
    sides: Sides, drawn: list[Update], program_runs: list[Run], choice: list[Any]
) -> None:
    expected, actual = run(sides, lambda lib: trained(lib, drawn, program_runs, choice, True))
    assert_same(actual, expected)


@settings(max_examples=2, suppress_health_check=[HealthCheck.too_slow])
@given(updates, runs, st.tuples(optimizers, optimizers).map(list))
def test_any_training_in_a_graph(
    sides: Sides, drawn: list[Update], program_runs: list[Run], choice: list[Any]
) -> None:
    # FastEstimator's graphs cannot do these: see test_tf_mended.py
    assume(not any(update.defer and update.merge > 1 for update in drawn))
    expected, actual = run(sides, lambda lib: trained(lib, drawn, program_runs, choice, False))
    assert_same(actual, expected)
