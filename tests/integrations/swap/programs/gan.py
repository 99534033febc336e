"""Two models that are trained against each other in one step."""

from __future__ import annotations

from typing import Any

import fastestimator as fe
import numpy as np
from fastestimator.dataset import NumpyDataset
from fastestimator.op.tensorop import TensorOp
from fastestimator.op.tensorop.loss import CrossEntropy
from fastestimator.op.tensorop.model import ModelOp, UpdateOp
from recording import Record, logged, memory, mlp, weights
from sklearn.datasets import load_digits


class Constant(TensorOp):
    """A loss's truth: ones, or zeros, one for each sample."""

    def __init__(self, value: float, inputs: str, outputs: str) -> None:
        super().__init__(inputs=inputs, outputs=outputs)
        self.value = value

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        return data * 0 + self.value


class HalfOfTwo(TensorOp):
    """The mean of two losses."""

    def forward(self, data: list[Any], state: dict[str, Any]) -> Any:
        first, second = data
        return 0.5 * (first + second)


def main(framework: str, folder: str) -> dict[str, Any]:
    generator = np.random.default_rng(1)
    images = (load_digits().images[:160] / 16).astype("float32").reshape(-1, 64)
    noise = generator.normal(size=(160, 8)).astype("float32")
    pipeline = fe.Pipeline(
        train_data=NumpyDataset({"real": images, "noise": noise}), batch_size=16, num_process=0
    )
    maker, judge = fe.build(
        lambda: [mlp(framework, 8, 64, 24), mlp(framework, 64, 1, 24)],
        optimizer_fn=["adam", "adam"],
        model_name=["maker", "judge"],
    )
    network = fe.Network(
        [
            ModelOp(model=maker, inputs="noise", outputs="fake"),
            ModelOp(model=judge, inputs="fake", outputs="judged"),
            Constant(1.0, inputs="judged", outputs="yes"),
            Constant(0.0, inputs="judged", outputs="no"),
            CrossEntropy(("judged", "yes"), "maker_loss", from_logits=True, form="binary"),
            UpdateOp(model=maker, loss_name="maker_loss"),
            ModelOp(model=judge, inputs="real", outputs="judged_real"),
            CrossEntropy(("judged_real", "yes"), "real_loss", from_logits=True, form="binary"),
            CrossEntropy(("judged", "no"), "fake_loss", from_logits=True, form="binary"),
            HalfOfTwo(inputs=["real_loss", "fake_loss"], outputs="judge_loss"),
            UpdateOp(model=judge, loss_name="judge_loss", defer=True),
        ]
        if framework == "tf"
        else [
            ModelOp(model=maker, inputs="noise", outputs="fake"),
            ModelOp(model=judge, inputs="fake", outputs="judged"),
            ModelOp(model=judge, inputs="real", outputs="judged_real"),
            Constant(1.0, inputs="judged", outputs="yes"),
            Constant(0.0, inputs="judged", outputs="no"),
            CrossEntropy(("judged", "yes"), "maker_loss", from_logits=True, form="binary"),
            CrossEntropy(("judged_real", "yes"), "real_loss", from_logits=True, form="binary"),
            CrossEntropy(("judged", "no"), "fake_loss", from_logits=True, form="binary"),
            HalfOfTwo(inputs=["real_loss", "fake_loss"], outputs="judge_loss"),
            UpdateOp(model=maker, loss_name="maker_loss"),
            UpdateOp(model=judge, loss_name="judge_loss"),
        ]
    )
    record = Record("maker_loss", "judge_loss", "fake")
    summary = fe.Estimator(pipeline, network, epochs=3, log_steps=5, traces=record).fit("gan")
    return {
        "steps": record.steps,
        "logged": logged(summary),
        "weights": weights(maker) + weights(judge),
        "memory": memory(maker) + memory(judge),
    }
