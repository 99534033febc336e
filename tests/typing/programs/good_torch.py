"""A program of torch: the types of what `build` gives, of an op of its own, and of modes."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Literal

import torch
from torch import nn
from typing_extensions import assert_type

import fastnet
from fastnet.backend import get_optimizer
from fastnet.op.numpyop import NumpyOp
from fastnet.op.tensorop import TensorOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import EMA, ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
from fastnet.slicer import AxisSlicer
from fastnet.types import Mode, State


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(x)
        return scores


class Scale(TensorOp):
    def forward(self, data: torch.Tensor, state: State) -> torch.Tensor:
        return data * 2


class Total(TensorOp):
    def forward(self, data: list[torch.Tensor], state: State) -> torch.Tensor:
        return sum(data, torch.zeros(()))


def two() -> list[Net]:
    return [Net(), Net()]


def pair() -> tuple[Net, Net]:
    return Net(), Net()


model = fastnet.build(Net, "adam")
assert_type(model, Net)
assert_type(model.head, nn.Linear)
assert_type(fastnet.build(lambda: Net(), "adam"), Net)
assert_type(fastnet.build(Net(), None), Net)
assert_type(fastnet.build(nn.Sequential(nn.Linear(1, 1)), None), nn.Sequential)
assert_type(fastnet.build(two, ["adam", "sgd"]), list[Net])
assert_type(fastnet.build(pair, ["adam", "sgd"]), list[Net])
assert_type(fastnet.build([Net(), Net()], ["adam", "sgd"]), list[Net])

assert_type(get_optimizer(model), torch.optim.Optimizer)
torch.optim.lr_scheduler.StepLR(get_optimizer(model), step_size=1)
assert_type(fastnet.__version__, str)

ema = EMA(model)
network = fastnet.Network(
    [
        Scale(inputs="x", outputs="x"),
        ModelOp(model, inputs={"x": "x"}, outputs="y"),
        CrossEntropy(inputs=["y", "label"], outputs="loss", from_logits=True),
        UpdateOp(model, "loss", clip_norm=1.0, outputs={"grad_norm": "norm"}, rest="flush"),
        ema,
    ]
)
listed = [Scale("x", "x"), ModelOp(model, "x", "y")]
fastnet.Network(
    listed,
    pops=EpochScheduler({1: NumpyOp("y", "y"), 2: None}),
    slicers=AxisSlicer(0, slice="x", unslice="y", mode="infer"),
)
fastnet.Network(
    [None, RepeatScheduler([Scale("x", "x"), None]), EpochScheduler({1: Scale("x", "x")})]
)
modes: list[Mode] = ["train", "eval"]
batch = {"x": torch.ones(3, 4), "label": torch.zeros(3, dtype=torch.long)}
for mode in modes:
    with network(mode=mode, epoch=1) as opened:
        result = opened.run_step(batch)
alike: Literal["train", "eval", "test", "infer"] = modes[0]
assert_type(network.transform(batch, "eval"), MutableMapping[str, Any])
assert_type(network.transform([batch], "eval"), list[MutableMapping[str, Any]])
for _, result in fastnet.steps(network, [batch], "train"):
    assert_type(result, dict[str, Any])
