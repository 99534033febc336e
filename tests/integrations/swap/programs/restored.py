"""A training that ends after two epochs, and another one that goes on from there."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import fastestimator as fe
from fastestimator.op.tensorop.loss import CrossEntropy, SuperLoss
from fastestimator.op.tensorop.model import ModelOp, UpdateOp
from fastestimator.schedule import EpochScheduler
from fastestimator.trace import Trace
from fastestimator.trace.io import RestoreWizard
from recording import Record, digits, logged, memory, mlp, weights


def latest(folder: str) -> str:
    """Name the folder that the wizard has saved into last."""
    with open(os.path.join(folder, "key.txt")) as file:
        return file.read()


class Failure(Exception):
    """What ends the first training."""


class Fail(Trace):
    """Fails at the beginning of an epoch."""

    def __init__(self, epoch: int) -> None:
        super().__init__(mode="train")
        # a function, so that the wizard does not restore it
        self.is_due = lambda now: now == epoch

    def on_epoch_begin(self, data: Any) -> None:
        if self.is_due(self.system.epoch_idx):
            raise Failure


def train(framework: str, folder: str, fail: int) -> dict[str, Any]:
    # five steps an epoch, and an update each third one: the gradients of one are kept as well
    pipeline = fe.Pipeline(train_data=digits(0, 160), batch_size=32, num_process=0)
    model = fe.build(lambda: mlp(framework), optimizer_fn="adam", model_name="restored")
    network = fe.Network(
        [
            ModelOp(model=model, inputs="x", outputs="scores"),
            SuperLoss(CrossEntropy(("scores", "y"), "loss", from_logits=True)),
            EpochScheduler({1: UpdateOp(model=model, loss_name="loss", merge_grad=3)}),
        ]
    )
    record = Record("loss")
    estimator = fe.Estimator(
        pipeline,
        network,
        epochs=4,
        log_steps=1,
        traces=[RestoreWizard(folder), record, Fail(fail)],
    )
    with contextlib.suppress(Failure):
        estimator.fit("restored", warmup=False)
    return {
        "steps": record.steps,
        "logged": logged(estimator.system.summary),
        "weights": weights(model),
        "memory": memory(model),
        "files": sorted(os.listdir(os.path.join(folder, latest(folder)))),
        "folder": latest(folder),
    }


def main(framework: str, folder: str) -> dict[str, Any]:
    first = train(framework, folder, fail=3)
    # what it starts from is not what it has, but what was saved
    return {"first": first, **train(framework, folder, fail=0)}
