"""Ops of every kind in one network, and classes of the program's own."""

from __future__ import annotations

from typing import Any

import fastestimator as fe
from fastestimator.backend import reduce_mean, to_tensor
from fastestimator.op.numpyop import Delete as NumpyDelete
from fastestimator.op.numpyop import LambdaOp as NumpyLambdaOp
from fastestimator.op.numpyop.univariate import Onehot
from fastestimator.op.tensorop import Average, Delete, LambdaOp, TensorOp
from fastestimator.op.tensorop.gradient import FGSM, GradientOp, Watch
from fastestimator.op.tensorop.loss import CrossEntropy, L1_Loss, L2Regularizaton, LossOp
from fastestimator.op.tensorop.meta import Fuse, OneOf, Repeat, Sometimes
from fastestimator.op.tensorop.model import ModelOp, UpdateOp
from recording import Record, digits, logged, memory, mlp, weights


class Scale(TensorOp):
    def __init__(self, factor: float, inputs: str, outputs: str, mode: Any = None) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode)
        self.factor = factor

    def build(self, framework: str, device: Any = None) -> None:
        self.factor = to_tensor(__import__("numpy").float32(self.factor), framework)

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        return data * self.factor


class Squares(LossOp):
    def forward(self, data: list[Any], state: dict[str, Any]) -> Any:
        predicted, true = data
        loss = (predicted - true) ** 2
        return reduce_mean(loss) if self.average_loss else loss


def main(framework: str, folder: str) -> dict[str, Any]:
    pipeline = fe.Pipeline(
        train_data=digits(0, 160),
        eval_data=digits(160, 224),
        ops=[Onehot(inputs="y", outputs="onehot", num_classes=10)],
        batch_size=32,
        num_process=0,
    )
    model = fe.build(lambda: mlp(framework), optimizer_fn="adam")
    network = fe.Network(
        [
            Scale(0.5, inputs="x", outputs="x"),
            Sometimes(Scale(3.0, inputs="x", outputs="x", mode="train"), prob=1.0),
            Repeat(LambdaOp(fn=lambda x: x * 1.1, inputs="x", outputs="x"), repeat=3),
            Watch(inputs="x"),
            ModelOp(model=model, inputs="x", outputs="scores"),
            CrossEntropy(inputs=("scores", "y"), outputs="clean_loss", from_logits=True),
            FGSM(data="x", loss="clean_loss", outputs="attacked", epsilon=0.02),
            ModelOp(model=model, inputs="attacked", outputs="attacked_scores"),
            OneOf(
                Squares(inputs=("attacked_scores", "onehot"), outputs="squares", mode=None),
                Squares(inputs=("attacked_scores", "onehot"), outputs="squares", mode=None),
            ),
            Fuse(
                [
                    L1_Loss(("scores", "onehot"), "l1", mode=None),
                    LambdaOp(fn=lambda x: x * 0.1, inputs="l1", outputs="small"),
                ]
            ),
            Average(inputs=("clean_loss", "squares", "small"), outputs="loss"),
            L2Regularizaton(inputs="loss", outputs="loss", model=model, beta=0.01, mode=None),
            GradientOp(inputs="x", finals="loss", outputs="gradient", mode="eval"),
            Delete(keys=["attacked", "l1"]),
            UpdateOp(model=model, loss_name="loss"),
        ],
        pops=[
            NumpyLambdaOp(fn=lambda x: x.argmax(axis=-1), inputs="scores", outputs="class"),
            NumpyDelete(keys="attacked_scores"),
        ],
    )
    record = Record("loss", "clean_loss", "squares", "small", "class")
    gradients = Record("gradient", mode="eval")
    estimator = fe.Estimator(pipeline, network, epochs=2, log_steps=2, traces=[record, gradients])
    summary = estimator.fit("library")
    return {
        "steps": record.steps,
        "gradients": gradients.steps,
        "logged": logged(summary),
        "weights": weights(model),
        "memory": memory(model),
    }
