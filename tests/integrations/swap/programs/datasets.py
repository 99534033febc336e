"""Several datasets to evaluate, ops for some of them, metrics of each, and early stopping."""

from __future__ import annotations

from typing import Any

import fastestimator as fe
from fastestimator.op.tensorop import LambdaOp
from fastestimator.op.tensorop.loss import CrossEntropy
from fastestimator.op.tensorop.model import ModelOp, UpdateOp
from fastestimator.trace.adapt import EarlyStopping
from fastestimator.trace.metric import Accuracy
from recording import Record, digits, logged, mlp, weights


def main(framework: str, folder: str) -> dict[str, Any]:
    pipeline = fe.Pipeline(
        train_data=digits(0, 160),
        eval_data={"clean": digits(160, 224), "dark": digits(224, 320)},
        test_data={"clean": digits(320, 352), "dark": digits(352, 416)},
        batch_size=32,
        num_process=0,
    )
    model = fe.build(lambda: mlp(framework), optimizer_fn="rmsprop")
    network = fe.Network(
        [
            LambdaOp(fn=lambda x: x * 0.25, inputs="x", outputs="x", ds_id="dark"),
            LambdaOp(fn=lambda x: x + 0.0, inputs="x", outputs="x", ds_id="!dark", mode="eval"),
            ModelOp(model=model, inputs="x", outputs="scores"),
            CrossEntropy(inputs=("scores", "y"), outputs="loss", from_logits=True),
            CrossEntropy(
                inputs=("scores", "y"), outputs="clean_loss", from_logits=True, ds_id="clean"
            ),
            UpdateOp(model=model, loss_name="loss"),
        ]
    )
    record = Record("loss")
    clean = Record("clean_loss", mode=["eval", "test"])
    clean.ds_id = {"clean"}
    estimator = fe.Estimator(
        pipeline,
        network,
        epochs=6,
        log_steps=0,
        traces=[
            Accuracy(true_key="y", pred_key="scores"),
            EarlyStopping(monitor="loss", patience=1, min_delta=0.5),
            record,
            clean,
        ],
    )
    summary = estimator.fit("datasets")
    epochs = estimator.system.epoch_idx
    estimator.test()
    return {
        "steps": record.steps,
        "clean": clean.steps,
        "logged": logged(summary),
        "weights": weights(model),
        "epochs": epochs,
    }
