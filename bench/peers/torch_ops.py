"""The calls of PyTorch that each op needs, written by hand: the reference of `OpCost`.

The calls make no checks, and what does not change from step to step is computed ahead. They take
the batch and return the op's values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.distributions import Beta
from torch.nn import functional as F

from bench.workloads.ops import LEARNING_RATE

Batch = dict[str, torch.Tensor]
Calls = Callable[[Batch], Any]


def calls_of(name: str, model: torch.nn.Module) -> Calls:
    """Return the calls of a case, with the model of ops that have one."""
    return SIMPLE[name] if name in SIMPLE else MADE[name](model)


def _binary_weighted(batch: Batch) -> Any:
    x, y = batch["x"], batch["y"]
    # Truth that is neither yes nor no has weight 1.
    weights = torch.ones_like(y).masked_fill_(y == 1, 3.0)
    return (F.binary_cross_entropy(x, y, reduction="none") * weights).mean()


def _overlap(batch: Batch) -> torch.Tensor:
    x, y = batch["x"], batch["y"]
    common = (x * y).sum((2, 3))
    return 2.0 * common / (x.sum((2, 3)) + y.sum((2, 3)) + 1e-6)


def _focal(entropy: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    untrue = 1 - y
    correct = x * y + (1 - x) * untrue
    weight = 0.25 * y + 0.75 * untrue
    loss = weight * (entropy * (1 - correct) ** 2)
    return (loss / y.sum(1, keepdim=True).clamp(min=1)).sum(1).mean()


def _focal_loss(batch: Batch) -> Any:
    x, y = batch["x"], batch["y"]
    return _focal(F.binary_cross_entropy(x, y, reduction="none"), x, y)


def _focal_logits(batch: Batch) -> Any:
    x, y = batch["x"], batch["y"]
    return _focal(F.binary_cross_entropy_with_logits(x, y, reduction="none"), x.sigmoid(), y)


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


def _mixup(model: torch.nn.Module) -> Calls:
    one = torch.tensor(1.0)
    beta = Beta(one, one)

    def calls(batch: Batch) -> Any:
        x, y = batch["x"], batch["y"]
        drawn = beta.rsample((x.shape[0],))
        share = drawn.reshape(-1, 1, 1, 1)
        label_share = drawn.reshape(-1, 1)
        share = torch.maximum(share, 1 - share)
        return (
            x * share + x.roll(1, 0) * (1 - share),
            y * label_share + y.roll(1, 0) * (1 - label_share),
        )

    return calls


def _cutmix(model: torch.nn.Module) -> Calls:
    beta = Beta(1.0, 1.0)

    def calls(batch: Batch) -> Any:
        images, labels = batch["x"], batch["y"]
        height, width = images.shape[-2:]
        kept = beta.rsample()
        half = torch.sqrt(1 - torch.maximum(kept, 1 - kept)) / 2
        x, y = torch.rand(()), torch.rand(())
        left, right = _span(width, x, half)
        top, bottom = _span(height, y, half)
        mixed = images.clone()
        mixed[..., top:bottom, left:right] = images[..., top:bottom, left:right].roll(1, 0)
        kept = 1 - torch.tensor((right - left) * (bottom - top) / (height * width))
        return mixed, labels * kept + labels.roll(1, 0) * (1 - kept)

    return calls


def _span(length: int, middle: torch.Tensor, half: torch.Tensor) -> tuple[int, int]:
    center, reach = length * middle, length * half
    first = torch.round(torch.clamp(center - reach, min=0))
    last = torch.round(torch.clamp(center + reach, max=length))
    return int(first), int(last)


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


def _sparse_weighted(model: torch.nn.Module) -> Calls:
    weights = torch.tensor([2.0, 1.0, 1.0, 0.5])

    def calls(batch: Batch) -> Any:
        x, y = batch["x"], batch["y"]
        return (F.cross_entropy(x, y, reduction="none") * weights[y]).mean()

    return calls


def _dice_weighted(model: torch.nn.Module) -> Calls:
    weights = torch.tensor([[2.0, 1.0, 1.0]])
    return lambda batch: -(_overlap(batch) * weights).mean(-1).mean(0)


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


class _LambertW(torch.autograd.Function):
    """Lambert's W by Halley's method, with a derivative of its own as the op has."""

    @staticmethod
    def forward(ctx: Any, z: torch.Tensor) -> torch.Tensor:
        below = (2 * (1 + math.e * z)).clamp(min=0)
        root = below.sqrt()
        near = -1 + root - below / 3 + 11 / 72 * below * root
        log = z.clamp(min=-0.3).log1p()
        far = log * (1 - log.log1p() / (2 + log))
        w = torch.where(z < -0.2649, near, far)
        for _ in range(4):
            error = w - z * (-w).exp()
            bottom = 2 * (w + 1) ** 2 - (w + 2) * error
            w = w - 2 * (w + 1) * error / torch.where(bottom == 0, 1, bottom)
        w = torch.where(z == math.inf, z, w)
        w = torch.where(z < -1 / math.e, math.nan, w)
        ctx.save_for_backward(w)
        return w

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (w,) = ctx.saved_tensors
        return gradients[0] * (-w).exp() / (1 + w)


def _weighted(losses: torch.Tensor, threshold: Any) -> torch.Tensor:
    """Weight losses as a SuperLoss does."""
    beta = losses - threshold
    z = 0.5 * beta.clamp(min=-1.9999998 / math.e)
    w: torch.Tensor = _LambertW.apply(z)  # type: ignore[no-untyped-call]
    return (beta * (-w).exp() + w.pow(2)).mean()


def _super_loss(model: torch.nn.Module) -> Calls:
    return lambda batch: _weighted(F.cross_entropy(batch["x"], batch["y"], reduction="none"), 1.0)


def _super_loss_exp(model: torch.nn.Module) -> Calls:
    mean: Any = None

    def calls(batch: Batch) -> Any:
        nonlocal mean
        losses = F.cross_entropy(batch["x"], batch["y"], reduction="none")
        value = losses.mean().detach()
        mean = value if mean is None else mean - 0.1 * (mean - value)
        return _weighted(losses, mean)

    return calls


# A network returns tensors that belong to no graph, hence the last `detach` of some.
SIMPLE: dict[str, Calls] = {
    "argmax": lambda batch: batch["x"].argmax(1),
    "average": lambda batch: (batch["x"] + batch["y"]) / 2,
    "gather": lambda batch: batch["x"][torch.arange(batch["x"].shape[0]), batch["y"]],
    "gather_largest": lambda batch: batch["x"].max(1)[0],
    "permute": lambda batch: batch["x"].permute(0, 3, 1, 2),
    "reshape": lambda batch: batch["x"].reshape(-1, 108),
    "resize_3d": lambda batch: F.interpolate(batch["x"], (2, 2, 2), mode="nearest"),
    "delete": lambda batch: (),
    "lambda_op": lambda batch: -batch["x"],
    "sparse": lambda batch: F.cross_entropy(batch["x"], batch["y"]),
    "sparse_probabilities": lambda batch: F.nll_loss(batch["x"].log(), batch["y"]),
    "categorical": lambda batch: -(batch["y"] * F.log_softmax(batch["x"], 1)).sum(1).mean(),
    # A reduction by the function itself would round gradients differently.
    "binary": lambda batch: F.binary_cross_entropy(batch["x"], batch["y"], reduction="none").mean(),
    "binary_weighted": _binary_weighted,
    "dice": lambda batch: -_overlap(batch).mean(-1).mean(0),
    "focal": _focal_loss,
    "focal_logits": _focal_logits,
    "hinge": lambda batch: (1.0 - batch["y"] * batch["x"]).clamp(min=0).mean(-1).mean(),
    "l1": lambda batch: F.l1_loss(batch["x"], batch["y"], reduction="none").mean(-1).mean(),
    "l1_smooth": lambda batch: (
        F.smooth_l1_loss(batch["x"], batch["y"], reduction="none").mean(-1).mean()
    ),
    "l1_huber": lambda batch: (
        F.huber_loss(batch["x"], batch["y"], reduction="none").mean(-1).mean()
    ),
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
    "sparse_weighted": _sparse_weighted,
    "dice_weighted": _dice_weighted,
    "l2": _l2,
    "model": lambda model: lambda batch: model(batch["x"]),
    "update": _update,
    "super_loss": _super_loss,
    "super_loss_exp": _super_loss_exp,
    "cutmix": _cutmix,
    "mixup": _mixup,
}
