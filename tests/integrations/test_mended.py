"""Faults of FastEstimator 1.7.0 that fastnet does not have; see docs/migration.md.

Each test shows FastEstimator's fault first. Fixes that need no comparison are tested elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.integrations import sides as torch_sides
from tests.integrations.sides import Sides, start_over, steps, trainer
from tests.integrations.tf_sides import MARKS, batches, mlp, tf

pytestmark = MARKS

keras = tf.keras


def test_settings_of_the_caller(sides: Sides) -> None:
    """Deferral is not written into ops, nor optimizers into schedulers."""
    start_over()
    for lib in (sides.fastestimator, sides.fastnet):
        mends = lib is sides.fastnet
        scheduler = lib.schedule.EpochScheduler({1: "adam", 3: None})
        model = lib.build(torch_sides.mlp, scheduler, model_name="mlp")
        assert (scheduler.get_all_values() == ["adam", None]) is mends
        network = trainer(lib, model)
        before = dict(vars(network.ops[-1]))
        network("train", 1, "")
        assert (vars(network.ops[-1]) == before) is mends


def test_layers_that_are_frozen_in_an_inner_model(sides: Sides) -> None:
    """FastEstimator trains a layer of a layer that is frozen after the first epoch."""

    def is_trained(lib: Any) -> bool:
        start_over()
        inner = mlp()
        outer = keras.Sequential([keras.layers.Input((6,)), inner])
        network = trainer(lib, lib.build(lambda: outer, "sgd", model_name="outer"))
        steps(network, batches(2))
        inner.layers[0].trainable = False
        before = inner.layers[0].get_weights()
        steps(network, batches(2), epoch=2)
        return not np.array_equal(before[0], inner.layers[0].get_weights()[0])

    assert [is_trained(lib) for lib in (sides.fastestimator, sides.fastnet)] == [True, False]
