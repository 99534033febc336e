"""Half precision where it is safe."""

from __future__ import annotations

from typing import Any

import fastestimator as fe
from fastestimator.backend import cast
from fastestimator.op.tensorop import LambdaOp
from fastestimator.op.tensorop.loss import CrossEntropy
from fastestimator.op.tensorop.model import ModelOp, UpdateOp
from fastestimator.trace.metric import Accuracy
from recording import Record, digits, logged, mlp, weights


def main(framework: str, folder: str) -> dict[str, Any]:
    pipeline = fe.Pipeline(
        train_data=digits(0, 160), eval_data=digits(160, 224), batch_size=32, num_process=0
    )
    model = fe.build(lambda: mlp(framework), optimizer_fn="adam", mixed_precision=True)
    network = fe.Network(
        [
            ModelOp(model=model, inputs="x", outputs="scores"),
            CrossEntropy(inputs=("scores", "y"), outputs="loss", from_logits=True),
            # metrics count with numpy, which has no bfloat16
            LambdaOp(fn=lambda x: cast(x, "float32"), inputs="scores", outputs="whole_scores"),
            UpdateOp(model=model, loss_name="loss"),
        ]
    )
    record = Record("loss", "scores")
    estimator = fe.Estimator(
        pipeline, network, epochs=3, log_steps=2, traces=[Accuracy("y", "whole_scores"), record]
    )
    summary = estimator.fit("mixed")
    return {"steps": record.steps, "logged": logged(summary), "weights": weights(model)}
