"""Optimizers, ops and postprocessing that change with the epoch."""

from __future__ import annotations

from typing import Any

import fastestimator as fe
from fastestimator.op.numpyop import LambdaOp as NumpyLambdaOp
from fastestimator.op.tensorop import LambdaOp
from fastestimator.op.tensorop.loss import CrossEntropy, MeanSquaredError
from fastestimator.op.tensorop.model import ModelOp, UpdateOp
from fastestimator.schedule import EpochScheduler, RepeatScheduler
from recording import Record, digits, logged, memory, mlp, weights


def momentum(parameters: Any = None) -> Any:
    """Make an optimizer, of torch if there are parameters."""
    if parameters is not None:
        import torch

        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    import tensorflow as tf

    return tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9)


def main(framework: str, folder: str) -> dict[str, Any]:
    pipeline = fe.Pipeline(
        train_data=digits(0, 160),
        eval_data=digits(160, 224),
        batch_size=EpochScheduler({1: 16, 3: 32}),
        num_process=0,
    )
    model = fe.build(
        lambda: mlp(framework), optimizer_fn=EpochScheduler({1: "adam", 3: momentum, 5: "sgd"})
    )
    other = fe.build(lambda: mlp(framework), optimizer_fn=RepeatScheduler([momentum, "adam"]))
    network = fe.Network(
        [
            RepeatScheduler([LambdaOp(fn=lambda x: x * 0.5, inputs="x", outputs="x"), None]),
            ModelOp(model=model, inputs="x", outputs="scores"),
            ModelOp(model=other, inputs="x", outputs="other_scores"),
            CrossEntropy(inputs=("scores", "y"), outputs="loss", from_logits=True),
            EpochScheduler(
                {
                    1: CrossEntropy(("other_scores", "y"), "other_loss", from_logits=True),
                    4: MeanSquaredError(("other_scores", "scores"), "other_loss"),
                }
            ),
            UpdateOp(model=model, loss_name="loss"),
            EpochScheduler({1: None, 2: UpdateOp(model=other, loss_name="other_loss")}),
        ],
        pops=EpochScheduler(
            {1: NumpyLambdaOp(fn=lambda x: x.max(axis=1), inputs="scores", outputs="top")}
        ),
    )
    record = Record("loss", "other_loss", "top")
    summary = fe.Estimator(pipeline, network, epochs=6, log_steps=3, traces=record).fit("schedule")
    return {
        "steps": record.steps,
        "logged": logged(summary),
        "weights": weights(model) + weights(other),
        "memory": memory(model) + memory(other),
    }
