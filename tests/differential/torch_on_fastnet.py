"""Torch programs run by fastnet."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch

import fastnet
from fastnet import CompileOptions
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.gradient import GradientOp
from fastnet.op.tensorop.loss import CrossEntropy, MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
from tests.differential.programs import Op, Open, Program
from tests.differential.torch_side import FUNCTIONS, PATCHES, Interrupt, Side, Tensors


class Affine(TensorOp):
    """An op of a program's own, with a setting."""

    def __init__(self, factor: float, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.factor = factor

    def forward(self, data: Any, state: Any) -> Any:
        return data * self.factor + 1


class OnFastnet(Side):
    """A program, run by fastnet."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        for name, model in program.models.items():
            makers = {
                begin: lambda parameters, name=name, spec=spec: self.make(name, spec, parameters)
                for begin, spec in model.optimizers.items()
            }
            module = self.modules[name]
            fastnet.build(
                lambda module=module: module,
                makers[1] if len(makers) == 1 else EpochScheduler(makers),
                model_name=name,
                mixed_precision=program.mixed,
            )
        self._ops: dict[str, Any] = {}
        settings = dict(program.compile or {})
        dynamic = settings.pop("dynamic", None)
        options = False if program.compile is None else self._options(**settings)
        self.network = TorchNetwork(
            [self._make_scheduled(op) for op in program.ops], dynamic=dynamic, compile=options
        )

    def optimizer(self, name: str) -> torch.optim.Optimizer:
        current: torch.optim.Optimizer = self.modules[name].current_optimizer
        return current

    def put_optimizer(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        self.modules[name].optimizer = self.modules[name].current_optimizer = optimizer

    def change_op(self, name: str, attribute: str, value: Any) -> None:
        op = self._ops[name]
        if attribute == "class_weights[1]":
            op.class_weights[1] = value
        elif attribute == "model":
            op.model = self.modules[value]
        elif attribute == "fn":
            op.fn = FUNCTIONS[value]
        elif attribute == "patched":
            patch = PATCHES[value]
            op.forward = types.MethodType(lambda self, data, state: patch(data, state), op)
        else:
            setattr(op, attribute, copy.deepcopy(value))

    def insert_op(self, place: int, function: str, key: str) -> None:
        self.network.ops.insert(place, LambdaOp(FUNCTIONS[function], key, key))

    def open(self, action: Open) -> None:
        self.network(
            mode=action.mode,
            epoch=action.epoch,
            ds_id=action.ds_id,
            desired_output_keys=set(action.wanted) or None,
            warmup=action.warmup,
        ).__enter__()

    def close(self) -> None:
        self.network.__exit__()

    def step(self, batch: Tensors) -> Tensors:
        return self.network.run_step(batch)

    def _options(self, **options: Any) -> CompileOptions:
        def backend(graph: Any, examples: Any) -> Callable[..., Any]:
            def run(*inputs: Any) -> Any:
                if self.in_program is not None:
                    raise Interrupt(self.in_program)
                return graph(*inputs)

            return run

        return CompileOptions(backend, **options)

    def _make_scheduled(self, op: Op) -> Any:
        made = self._ops[op.name] = self._make_op(op)
        return RepeatScheduler([made if on else None for on in op.turns]) if op.turns else made

    def _make_op(self, op: Op) -> Any:
        given = copy.deepcopy(op.settings)
        if "model" in given:
            given["model"] = self.modules[given["model"]]
        reads = op.reads[0] if len(op.reads) == 1 else op.reads
        writes = op.writes[0] if len(op.writes) == 1 else op.writes
        rest = {"mode": op.mode, "ds_id": op.ds_id}
        if op.kind == "extra":
            extra = self.extras[op.settings["model"]]
            return LambdaOp(lambda x: x * extra, reads, writes, **rest)
        if op.kind == "trip":
            return LambdaOp(self.tripwire, reads, writes, **rest)
        return _MAKERS[op.kind](reads, writes, given, rest)


def _make_model_op(reads: Any, writes: Any, given: Any, rest: Any) -> Any:
    layer = given.pop("layer")
    return ModelOp(given.pop("model"), reads, writes, intermediate_layers=layer, **given, **rest)


def _make_update(reads: Any, writes: Any, given: Any, rest: Any) -> Any:
    keys = ("the loss", reads) if given.pop("given") else (reads, None)
    return UpdateOp(given.pop("model"), *keys, **given, **rest)


def _loss(kind: Any, **fixed: Any) -> Callable[..., Any]:
    def make(reads: Any, writes: Any, given: Any, rest: Any) -> Any:
        return kind(reads, writes, **{**given, **fixed, **rest})

    return make


_MAKERS: dict[str, Callable[..., Any]] = {
    "model": _make_model_op,
    "update": _make_update,
    "cross entropy": _loss(CrossEntropy, from_logits=True),
    "squared error": _loss(MeanSquaredError),
    "gradient": lambda reads, writes, given, rest: GradientOp(
        finals=reads, outputs=writes, model=given["model"], **rest
    ),
    "lambda": lambda reads, writes, given, rest: LambdaOp(
        FUNCTIONS[given["fn"]], reads, writes, **rest
    ),
    "affine": lambda reads, writes, given, rest: Affine(given["factor"], reads, writes, **rest),
    "split": lambda reads, writes, given, rest: LambdaOp(
        lambda x: [x * 2, x + 1], reads, writes, **rest
    ),
}
