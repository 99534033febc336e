"""SuperLoss beside FastEstimator's, and both beside float64: whose float32 is nearer to it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.integrations.sides import Sides
from tests.integrations.test_op_library import tensorops
from tests.integrations.tf_sides import MARKS, tf
from tests.integrations.torchvision_stand_in import complete_fastestimator

pytestmark = MARKS

scipy = pytest.importorskip("scipy.special")

CUT = -1.9999998 / math.e
THRESHOLD = 3.0
# losses from none to just above where the confidence ends, above that, and hard ones
PARTS = {
    "far below": np.linspace(0.01, THRESHOLD - 0.74, 200),
    "next to the end": THRESHOLD - 2 / math.e + np.linspace(-0.001, 0.02, 200),
    "above the end": np.linspace(2.3, 3, 200),
    "hard": np.linspace(3, 30, 200),
}
STATE = {"mode": "train", "warmup": False, "epoch": 1, "tape": None, "deferred": {}}


@pytest.fixture(scope="module", autouse=True)
def _whole_fastestimator() -> Iterator[None]:
    with complete_fastestimator():
        yield


def computed(lib: Any, framework: str, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute confidences, and the slopes of the loss."""
    module = tensorops(lib).loss
    inner = module.l1_loss.L1_Loss(("p", "t"), "y")
    op = module.super_loss.SuperLoss(inner, THRESHOLD, output_confidence="c", average_loss=False)
    shaped = losses[:, None]
    if framework == "torch":
        op.build("torch", torch.device("cpu"))
        tensor = torch.tensor(shaped, requires_grad=True)
        loss, confidence = op.forward([tensor, torch.zeros_like(tensor)], STATE)
        (slopes,) = torch.autograd.grad(loss.sum(), tensor)
        return confidence.detach().numpy(), slopes.numpy()[:, 0]
    op.build("tf")
    tensor = tf.constant(shaped)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        loss, confidence = op.forward([tensor, tf.zeros_like(tensor)], STATE)
    return confidence.numpy(), tape.gradient(loss, tensor).numpy()[:, 0]


@pytest.mark.parametrize("part", list(PARTS))
@pytest.mark.parametrize("framework", ["torch", "tf"])
def test_at_least_as_exact(sides: Sides, framework: str, part: str) -> None:
    losses = PARTS[part].astype("float32")
    excess = (losses.astype("float64") - THRESHOLD).clip(CUT)
    # in float64, by scipy
    wanted = np.exp(-scipy.lambertw(excess / 2).real)
    own, their = (
        # of the confidences, and of the slopes, which are the confidences
        [np.abs(one / wanted - 1).max() for one in computed(lib, framework, losses)]
        for lib in (sides.fastnet, sides.fastestimator)
    )
    few_roundings = 4 * 2.0**-23
    for one, other in zip(own, their, strict=True):
        assert one <= max(other, few_roundings)
        assert one < 1e-6
    if part == "far below":
        assert min(their) > 2e-5
