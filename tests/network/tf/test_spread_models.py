"""Tests of what `explain` says about models on several devices of one process."""

from __future__ import annotations

import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop.model import ModelOp
from tests import own_process

pytestmark = [pytest.mark.tf, pytest.mark.slow, pytest.mark.own_process]

keras = tf.keras

if own_process.is_here():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    STRATEGY = tf.distribute.MirroredStrategy(["/device:CPU:0", "/device:CPU:1"])


def dense() -> keras.Model:
    return keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])


def network_of(name: str) -> TFNetwork:
    return TFNetwork([ModelOp(fastnet.build(dense, None, model_name=name), "x", "y")])


def told(network: TFNetwork) -> str:
    explanation = network.explain("infer")
    (name,) = (model.model_name for model in network.models)
    assert explanation.parallelism.get(name, "") in " ".join(str(explanation).split())
    return explanation.parallelism.get(name, "")


def test_by_a_strategy_of_the_program() -> None:
    with STRATEGY.scope():
        assert told(network_of("spread")) == "by MirroredStrategy over 2 devices"


def test_without_one() -> None:
    network = network_of("alone")
    assert told(network) == ""
    with STRATEGY.scope():
        assert told(network) == ""


def test_the_strategy_is_remembered() -> None:
    with STRATEGY.scope():
        network = network_of("left")
    assert told(network) == "by MirroredStrategy over 2 devices"
