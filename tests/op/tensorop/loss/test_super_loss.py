"""SuperLoss of losses that do not return one loss per sample, and of ops that were not built."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastnet.op.tensorop.loss import FocalLoss, LossOp, MeanSquaredError, SuperLoss
from tests.backend.makers import make

TF = pytest.param("tf", marks=pytest.mark.tf)
PROBABILITIES = np.array([[0.9, 0.2], [0.3, 0.6]], "float32")
TARGETS = np.array([[1.0, 0.0], [1.0, 0.0]], "float32")
STATE = {"mode": "train", "warmup": False}


class AlwaysMean(LossOp):
    """A loss that averages whatever its `average_loss` is."""

    def forward(self, data: list[Any], state: Any) -> Any:
        return self.backend.reduce_mean(data[0] - data[1], None, False)


def forward(framework: str, op: SuperLoss) -> Any:
    op.build(framework)
    return op.forward([make(framework, PROBABILITIES), make(framework, TARGETS)], STATE)


@pytest.mark.parametrize("framework", ["torch", TF])
class TestScalarLosses:
    def test_focal_loss_that_averages_raises(self, framework: str) -> None:
        op = SuperLoss(FocalLoss(("p", "t"), "loss"))
        text = r"one loss per sample, but FocalLoss returned a scalar\. .*sample_reduction='none'"
        with pytest.raises(ValueError, match=text):
            forward(framework, op)

    def test_other_loss_that_averages_raises(self, framework: str) -> None:
        with pytest.raises(ValueError, match=r"AlwaysMean returned a scalar.*average_loss is True"):
            forward(framework, SuperLoss(AlwaysMean(("p", "t"), "loss")))

    def test_focal_loss_per_sample_is_weighted_by_sample(self, framework: str) -> None:
        loss = FocalLoss(("p", "t"), "loss", sample_reduction="none")
        op = SuperLoss(loss, threshold=0.5, output_confidence="confidence")
        confidence = np.asarray(forward(framework, op)[1])
        # The first sample has the smaller loss.
        assert confidence.shape == (2,)
        assert confidence[0] > confidence[1]


def test_state_of_op_that_was_not_built_is_refused() -> None:
    op = SuperLoss(MeanSquaredError(("p", "t"), "loss"))
    with pytest.raises(ValueError, match="Build the op, or make a network of it"):
        op.load_state_dict({"averages": {"train": 0.5}})
    op.build("torch")
    op.load_state_dict({"averages": {"train": 0.5}})
    assert op.state_dict()["averages"]["train"] == 0.5


def test_state_without_averages_needs_no_build() -> None:
    op = SuperLoss(MeanSquaredError(("p", "t"), "loss"), threshold=1.0)
    op.load_state_dict({"averages": {}})
    assert op.state_dict() == {"averages": {}}
