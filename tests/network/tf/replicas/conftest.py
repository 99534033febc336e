"""Fixtures of the tests with several devices."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from tests.network.tf.replicas.devices import STRATEGY, keras, under


@pytest.fixture
def two() -> Iterator[None]:
    with under(STRATEGY):
        yield


@pytest.fixture(autouse=True)
def strategies_are_put_back() -> Iterator[None]:
    keras.utils.set_random_seed(1)
    yield
    assert not tf.distribute.has_strategy()
    assert tf.get_logger().level == logging.NOTSET


@pytest.fixture(scope="module")
def fastestimator() -> Any:
    module = pytest.importorskip("fastestimator")
    # not offered by the package until somebody has imported it
    importlib.import_module("fastestimator.network")
    return module
