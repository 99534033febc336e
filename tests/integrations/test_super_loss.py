"""SuperLoss beside FastEstimator's, and both beside float64: whose float32 is nearer to it."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

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


class Confidence(torch.autograd.Function):
    """The logarithm of the confidence in float64, by scipy."""

    @staticmethod
    def forward(ctx: Any, beta: torch.Tensor) -> torch.Tensor:
        log = torch.tensor(-scipy.lambertw(beta.numpy().clip(CUT) / 2).real)
        ctx.save_for_backward(log, beta)
        return log

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        log, beta = ctx.saved_tensors
        slope = -log.exp() / (1 - log) / 2
        result: torch.Tensor = gradients[0] * slope.where(beta > CUT, 0.0)
        return result


def by_hand(losses: torch.Tensor, threshold: Any) -> tuple[torch.Tensor, torch.Tensor]:
    excess = losses - threshold
    log = Confidence.apply(excess)  # type: ignore[no-untyped-call]
    return excess * log.exp() + log**2, log.exp()


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
    _, wanted = by_hand(torch.tensor(losses).double(), THRESHOLD)
    own, their = (
        # of the confidences, and of the slopes, which are the confidences
        [np.abs(one / wanted.numpy() - 1).max() for one in computed(lib, framework, losses)]
        for lib in (sides.fastnet, sides.fastestimator)
    )
    few_roundings = 4 * 2.0**-23
    for one, other in zip(own, their, strict=True):
        assert one <= max(other, few_roundings)
        assert one < 1e-6
    if part == "far below":
        assert min(their) > 2e-5


@pytest.mark.parametrize("threshold", ["exp", math.log(5), THRESHOLD])
def test_training_with_wrong_labels(sides: Sides, threshold: Any) -> None:
    """A classifier ends where float64 does, ten times as near as FastEstimator's."""
    torch.manual_seed(0)
    first = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 5))
    source = np.random.default_rng(0)
    data = source.normal(size=(60, 64, 20))
    truth = (data @ source.normal(size=(20, 5))).argmax(-1)
    truth = np.where(source.random(truth.shape) < 0.3, source.integers(0, 5, truth.shape), truth)

    def train(loss_of: Any, dtype: torch.dtype) -> torch.Tensor:
        model = copy.deepcopy(first).to(dtype)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for x, t in zip(torch.tensor(data, dtype=dtype), torch.tensor(truth), strict=True):
            loss = loss_of(model(x), t)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return torch.cat([each.detach().double().flatten() for each in model.parameters()])

    means: list[Any] = []

    def exact(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        losses = functional.cross_entropy(p, t, reduction="none")
        mean = losses.detach().mean()
        means.append(0.9 * means[-1] + 0.1 * mean if means else mean)
        return by_hand(losses, means[-1] if threshold == "exp" else threshold)[0].mean()

    def off(lib: Any) -> float:
        module = tensorops(lib).loss
        inner = module.cross_entropy.CrossEntropy(("p", "t"), "y", from_logits=True)
        op = module.super_loss.SuperLoss(inner, threshold)
        op.build("torch", torch.device("cpu"))
        ends = train(lambda p, t: op.forward([p, t], STATE), torch.float32)
        return float((ends - wanted).abs().max())

    wanted = train(exact, torch.float64)
    own, their = off(sides.fastnet), off(sides.fastestimator)
    assert own < 1e-6
    assert 10 * own < their
