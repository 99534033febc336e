"""Several devices, which a process has only if it asks in time, and values spread over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fastnet.network import TFNetwork  # noqa: F401 - before the devices: it must start none
from tests import own_process

keras = tf.keras
KERAS_3 = hasattr(keras, "ops")

DEVICES = ["/device:CPU:0", "/device:CPU:1"]
STRATEGY: Any = None
ALL_THREE: Any = None

if own_process.is_here():
    # fastnet is imported by now, and has not started TensorFlow
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
    STRATEGY = tf.distribute.MirroredStrategy(DEVICES)
    ALL_THREE = tf.distribute.MirroredStrategy([*DEVICES, "/device:CPU:2"])

EITHER_WAY = pytest.mark.parametrize("eager", [False, True], ids=["static", "eager"])


@contextmanager
def under(strategy: tf.distribute.Strategy | None) -> Iterator[None]:
    before = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
    tf.distribute.experimental_set_strategy(strategy)
    try:
        yield
    finally:
        tf.distribute.experimental_set_strategy(before)


def parts(*values: Any) -> Any:
    """Make a distributed value."""
    assert len(values) == 2
    return STRATEGY.experimental_distribute_values_from_function(
        lambda context: tf.convert_to_tensor(values[context.replica_id_in_sync_group])
    )


def halves(value: Any, first: int | None = None) -> Any:
    """Make a distributed value of an array, of which the first device gets the first rows."""
    first = (len(value) + 1) // 2 if first is None else first
    return parts(value[:first], value[first:])


def plain(result: dict[str, Any]) -> dict[str, Any]:
    """Check that all of a result is plain, and take its arrays."""

    def check(value: Any) -> Any:
        assert not isinstance(value, tf.distribute.DistributedValues)
        return value.numpy() if tf.is_tensor(value) else value

    return {key: tf.nest.map_structure(check, value) for key, value in result.items()}


def copies_of(variable: Any) -> list[np.ndarray]:
    """Read a variable on each device that it is on."""
    # Keras 3 has variables of its own around those of TensorFlow
    inner = variable if isinstance(variable, tf.Variable) else variable.value
    return [copy.numpy() for copy in getattr(inner, "values", [inner])]


def value_of(variable: Any) -> np.ndarray:
    """Read a variable that is the same on all devices."""
    first, *others = copies_of(variable)
    for copy in others:
        np.testing.assert_array_equal(copy, first)
    return first


def assert_same_weights(model: Any, other: Any, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    assert len(model.weights) == len(other.weights) > 0
    for one, two in zip(model.weights, other.weights, strict=True):
        np.testing.assert_allclose(value_of(one), value_of(two), rtol=rtol, atol=atol)
