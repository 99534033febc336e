"""Changed settings of ops in graphs under a MirroredStrategy of two logical CPUs.

These are the ops that train, run a model or choose among ops, because each network is traced for
two devices, which takes long.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests import own_process

pytestmark = [pytest.mark.tf, pytest.mark.slow, pytest.mark.own_process]

if own_process.is_here():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

from fastnet.op.tensorop import TensorOp
from tests.conformance import test_changed_ops as settings
from tests.conformance.frameworks import TF, Batch, Framework, Layers


class Mirrored(TF):
    """TensorFlow graphs whose batches are split between two devices."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._strategy = tf.distribute.MirroredStrategy(["/device:CPU:0", "/device:CPU:1"])

    def build(self, layers: Layers, optimizer: Any = None, name: str = "model", **rest: Any) -> Any:
        with self._strategy.scope():
            return super().build(layers, optimizer, name, **rest)

    def steps(
        self, network: Any, batches: Iterable[Batch], *mode: Any, **opening: Any
    ) -> list[dict[str, Any]]:
        even = [
            {key: np.concatenate([value, value[: len(value) % 2]]) for key, value in batch.items()}
            for batch in batches
        ]
        with self._strategy.scope():
            return super().steps(network, even, *mode, **opening)


@pytest.fixture(scope="module")
def fw() -> Framework:
    return Mirrored("tf-mirrored")


NAMES = {"CrossEntropy", "LambdaOp", "ModelOp", "OneOf", "Repeat", "Sometimes", "UpdateOp"}


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in settings.CASES
        if issubclass(case.cls, TensorOp) and case.cls.__name__ in NAMES
    ],
    ids=lambda case: case.cls.__name__,
)
def test_settings(fw: Framework, case: settings.Case) -> None:
    settings.test_changed_settings(fw, case)
