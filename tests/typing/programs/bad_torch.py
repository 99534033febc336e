"""What a type checker refuses in a program of torch."""

from __future__ import annotations

import torch
from torch import nn

import fastnet
from fastnet.backend import get_optimizer
from fastnet.op.tensorop.model import ModelOp, UpdateOp

model = fastnet.build(lambda: nn.Linear(2, 1), "adam")
model.weigth_of_nothing()  # expect: operator
network = fastnet.Network([ModelOp(model, "x", "y")])
with network(mode="training", epoch=1):  # expect: arg-type
    pass
network.transform({"x": torch.ones(1, 2)}, "evaluate")  # expect: call-overload
fastnet.Network([nn.Linear(2, 1)])  # expect: list-item
fastnet.Network(ModelOp(model, "x", "y"), slicers=[0])  # expect: list-item
UpdateOp(model, "loss", rest="keep")  # expect: arg-type
UpdateOp(model, "loss", outputs={"norm": "n"})  # expect: dict-item
print(fastnet.nonsense)  # expect: attr-defined
print(fastnet.op.nonsense)  # expect: attr-defined
print(fastnet.op.tensorop.loss.Nonsense)  # expect: attr-defined
network.transform({"x": torch.ones(1, 2)}, "eval").append(1)  # expect: attr-defined
get_optimizer(model).nonsense()  # expect: attr-defined
