"""A classifier of digits: fit with warm-up, a schedule of rates, savers and metrics, then test."""

from __future__ import annotations

import os
from typing import Any

import fastestimator as fe
from fastestimator.op.tensorop.loss import CrossEntropy
from fastestimator.op.tensorop.model import ModelOp, UpdateOp
from fastestimator.schedule import cosine_decay
from fastestimator.trace.adapt import LRScheduler
from fastestimator.trace.io import BestModelSaver, ModelSaver
from fastestimator.trace.metric import Accuracy
from recording import Record, digits, logged, memory, mlp, weights


def main(framework: str, folder: str) -> dict[str, Any]:
    pipeline = fe.Pipeline(
        train_data=digits(0, 640),
        eval_data=digits(640, 900),
        test_data=digits(900, 1100),
        batch_size=32,
        num_process=0,
    )
    model = fe.build(lambda: mlp(framework), optimizer_fn="adam")
    network = fe.Network(
        [
            ModelOp(model=model, inputs="x", outputs="scores"),
            CrossEntropy(inputs=("scores", "y"), outputs="loss", from_logits=True),
            UpdateOp(model=model, loss_name="loss"),
        ]
    )
    record = Record("loss")
    estimator = fe.Estimator(
        pipeline,
        network,
        epochs=5,
        log_steps=10,
        traces=[
            Accuracy(true_key="y", pred_key="scores"),
            LRScheduler(model, lambda epoch: cosine_decay(epoch, cycle_length=5, init_lr=1e-2)),
            ModelSaver(model, save_dir=folder, frequency=5),
            BestModelSaver(model, save_dir=folder, metric="accuracy", save_best_mode="max"),
            record,
        ],
    )
    summary = estimator.fit("digits")
    estimator.test()
    return {
        "steps": record.steps,
        "logged": logged(summary),
        "weights": weights(model),
        "memory": memory(model),
        "files": sorted(os.listdir(folder)),
        "name": model.model_name,
    }
