"""Gradients of several steps in one update, and a second model that is updated in each."""

from __future__ import annotations

from typing import Any

import fastestimator as fe
from fastestimator.op.tensorop.loss import CrossEntropy
from fastestimator.op.tensorop.model import ModelOp, UpdateOp
from recording import Record, digits, logged, memory, mlp, weights


def main(framework: str, folder: str) -> dict[str, Any]:
    pipeline = fe.Pipeline(train_data=digits(0, 224), batch_size=32, num_process=0)
    slow, fast = fe.build(
        lambda: [mlp(framework), mlp(framework)],
        optimizer_fn=["adam", "sgd"],
        model_name=["slow", "fast"],
    )
    network = fe.Network(
        [
            ModelOp(model=slow, inputs="x", outputs="slow_scores"),
            ModelOp(model=fast, inputs="x", outputs="fast_scores"),
            CrossEntropy(("slow_scores", "y"), "slow_loss", from_logits=True),
            CrossEntropy(("fast_scores", "y"), "fast_loss", from_logits=True),
            UpdateOp(model=slow, loss_name="slow_loss", merge_grad=3),
            UpdateOp(model=fast, loss_name="fast_loss"),
        ]
    )
    record = Record("slow_loss", "fast_loss")
    summary = fe.Estimator(pipeline, network, epochs=4, log_steps=2, traces=record).fit("merged")
    return {
        "steps": record.steps,
        "logged": logged(summary),
        "weights": weights(slow) + weights(fast),
        "memory": memory(slow) + memory(fast),
    }
