"""TensorFlow programs run by fastnet, in a graph or op by op."""

from __future__ import annotations

from typing import Any

import fastnet
from fastnet.network import TFNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.gradient import GradientOp
from fastnet.op.tensorop.loss import CrossEntropy, MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.differential.programs import Op, Open, Program
from tests.differential.tf_side import FUNCTIONS, Batch, Side, make_optimizer


class OnFastnet(Side):
    """A program, run by fastnet.

    Args:
        program: The program.
        weights: The first weights of each model.
        eager: Whether steps run op by op.
        compile: Whether XLA compiles steps.
    """

    def __init__(
        self, program: Program, weights: dict[str, Any], eager: bool, compile: bool = False
    ) -> None:
        super().__init__(program, weights)
        self._eager = eager
        for name, spec in program.models.items():
            model = self.models[name]
            fastnet.build(
                lambda model=model: model,
                lambda model=model, spec=spec: make_optimizer(spec.optimizers[1], model),
                model_name=name,
            )
        self._ops = [self._make_op(op) for op in program.ops]
        self.network = TFNetwork(self._ops, compile=compile)

    def optimizer(self, name: str) -> Any:
        return self.models[name].current_optimizer

    def put_optimizer(self, name: str, optimizer: Any) -> None:
        self.models[name].optimizer = self.models[name].current_optimizer = optimizer

    def change_op(self, name: str, attribute: str, value: Any) -> None:
        setattr(
            self._ops[int(name.rpartition(" ")[2])],
            attribute,
            FUNCTIONS[value] if attribute == "fn" else value,
        )

    def open(self, action: Open) -> None:
        self.network(mode=action.mode, epoch=action.epoch, eager=self._eager).__enter__()

    def close(self) -> None:
        self.network.__exit__()

    def step(self, batch: Batch) -> Batch:
        return self.network.run_step(batch)

    def _make_op(self, op: Op) -> Any:
        given = dict(op.settings)
        reads = op.reads[0] if len(op.reads) == 1 else op.reads
        writes = op.writes[0] if op.writes else None
        mode = op.mode
        if op.kind == "lambda":
            return LambdaOp(FUNCTIONS[given["fn"]], reads, writes, mode=mode)
        if op.kind == "model":
            model = self.models[given["model"]]
            return ModelOp(model, reads, writes, mode=mode, trainable=given["trainable"])
        if op.kind == "gradient":
            return GradientOp(
                finals=reads, outputs=writes, model=self.models[given["model"]], mode=mode
            )
        if op.kind == "update":
            keys = ("the loss", reads) if given.pop("given") else (reads, None)
            return UpdateOp(self.models[given.pop("model")], *keys, mode=mode, **given)
        if op.kind == "squared":
            return MeanSquaredError(reads, writes, mode=mode, **given)
        return CrossEntropy(reads, writes, mode=mode, from_logits=True, form=op.kind, **given)
