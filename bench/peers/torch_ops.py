"""Hand-written PyTorch calls that compute the value of each op: the reference of `OpCost`.

The calls make no checks, and what does not change from step to step is computed ahead. They take
the batch and return the op's values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from bench.workloads.ops import LEARNING_RATE

Batch = dict[str, torch.Tensor]
Calls = Callable[[Batch], Any]


def calls_of(name: str, model: torch.nn.Module) -> Calls:
    """Return the calls of a case, with the model of ops that have one."""
    return SIMPLE[name] if name in SIMPLE else MADE[name](model)


def _overlap(batch: Batch) -> torch.Tensor:
    x, y = batch["x"], batch["y"]
    common = (x * y).sum((2, 3))
    return 2.0 * common / (x.sum((2, 3)) + y.sum((2, 3)) + 1e-6)


def _focal(batch: Batch) -> Any:
    x, y = batch["x"], batch["y"]
    untrue = 1 - y
    correct = x * y + (1 - x) * untrue
    weight = 0.25 * y + 0.75 * untrue
    entropy = F.binary_cross_entropy(x, y, reduction="none")
    loss = weight * (entropy * (1 - correct) ** 2)
    return (loss / y.sum(1, keepdim=True).clamp(min=1)).sum(1).mean()


def _differentiated(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    x = batch["x"].detach().requires_grad_(True)
    return x, x * x


def _gradient(batch: Batch) -> Any:
    x, loss = _differentiated(batch)
    return torch.autograd.grad(loss, x, torch.ones_like(loss))[0]


def _fgsm(batch: Batch) -> Any:
    x, loss = _differentiated(batch)
    gradient = torch.autograd.grad(loss, x, torch.ones_like(loss))[0]
    moved = x + 0.01 * gradient.sign()
    least, largest = x.detach().aminmax()
    return moved.clamp(min=least, max=largest).detach()


def _twice(batch: Batch) -> Any:
    y = -batch["x"]
    return y + y


def _thrice(batch: Batch) -> Any:
    x = -batch["x"]
    x = -x
    return -x


def _one_of(batch: Batch) -> Any:
    x = batch["x"]
    return -x if np.random.choice(2, p=[1.0, 0.0]) == 0 else x + x


def _normalize(model: torch.nn.Module) -> Calls:
    shift = torch.tensor([0.4, 0.5, 0.6]).reshape(-1, 1, 1)
    scale = torch.tensor([0.2, 0.3, 0.4]).reshape(-1, 1, 1) + 1e-7
    return lambda batch: (batch["x"] - shift) / scale


def _un_hadamard(model: torch.nn.Module) -> Calls:
    codes = torch.tensor([[-1.0, 1, 1, 1], [1, -1, 1, -1], [-1, 1, -1, -1], [1, -1, -1, 1]])
    least = torch.tensor(5 * (1 - 0.99999) / (0.99999 * 3))

    def calls(batch: Batch) -> Any:
        distances = (batch["x"].unsqueeze(1) - codes).abs().sum(-1)
        closeness = torch.maximum(distances, least).reciprocal()
        return closeness / closeness.sum(-1, keepdim=True)

    return calls


def _categorical_weighted(model: torch.nn.Module) -> Calls:
    weights = torch.tensor([2.0, 1.0, 1.0, 0.5])

    def calls(batch: Batch) -> Any:
        x, y = batch["x"], batch["y"]
        loss = -(y * F.log_softmax(x, 1)).sum(1)
        return (loss * weights[y.argmax(1)]).mean()

    return calls


def _l2(model: torch.nn.Module) -> Calls:
    weights = list(model.parameters())

    def calls(batch: Batch) -> Any:
        squares = [(one**2).sum() / 2 for one in weights]
        return 0.01 * torch.stack(squares).sum() + batch["x"]

    return calls


def _update(model: torch.nn.Module) -> Calls:
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def calls(batch: Batch) -> Any:
        z = model(batch["x"])
        loss = z * z
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
        return z.detach(), loss.detach()

    return calls


# A network returns tensors that belong to no graph, hence the last `detach` of some.
SIMPLE: dict[str, Calls] = {
    "argmax": lambda batch: batch["x"].argmax(1),
    "average": lambda batch: (batch["x"] + batch["y"]) / 2,
    "gather": lambda batch: batch["x"][torch.arange(batch["x"].shape[0]), batch["y"]],
    "permute": lambda batch: batch["x"].permute(0, 3, 1, 2),
    "reshape": lambda batch: batch["x"].reshape(-1, 108),
    "resize_3d": lambda batch: F.interpolate(batch["x"], (2, 2, 2), mode="nearest"),
    "delete": lambda batch: (),
    "lambda_op": lambda batch: -batch["x"],
    "sparse": lambda batch: F.cross_entropy(batch["x"], batch["y"]),
    "categorical": lambda batch: -(batch["y"] * F.log_softmax(batch["x"], 1)).sum(1).mean(),
    # A reduction by the function itself would round gradients differently.
    "binary": lambda batch: F.binary_cross_entropy(batch["x"], batch["y"], reduction="none").mean(),
    "dice": lambda batch: -_overlap(batch).mean(-1).mean(0),
    "focal": _focal,
    "hinge": lambda batch: (1.0 - batch["y"] * batch["x"]).clamp(min=0).mean(-1).mean(),
    "l1": lambda batch: F.l1_loss(batch["x"], batch["y"], reduction="none").mean(-1).mean(),
    "mse": lambda batch: F.mse_loss(batch["x"], batch["y"]),
    "watch": lambda batch: batch["x"].detach().requires_grad_(True).detach(),
    "watched": lambda batch: _differentiated(batch)[1].detach(),
    "gradient": _gradient,
    "fgsm": _fgsm,
    "once": lambda batch: -batch["x"],
    "twice": _twice,
    "fuse": _twice,
    "thrice": _thrice,
    "repeat": _thrice,
    "one_of": _one_of,
    "sometimes": lambda batch: -batch["x"] if torch.rand(()).item() < 1.0 else batch["x"],
}
MADE: dict[str, Callable[[torch.nn.Module], Calls]] = {
    "normalize": _normalize,
    "un_hadamard": _un_hadamard,
    "categorical_weighted": _categorical_weighted,
    "l2": _l2,
    "model": lambda model: lambda batch: model(batch["x"]),
    "update": _update,
}
