"""The calls of PyTorch that each op makes, written by hand: the oracle of `OpCost`.

Each function does what the value of its op needs, once settings are known: no checks, and what
does not change from step to step is made ahead. It takes the batch and returns the op's values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.distributions import Beta
from torch.nn import functional as F

from bench.workloads.op_cost import LEARNING_RATE

Batch = dict[str, torch.Tensor]
Calls = Callable[[Batch], Any]


def argmax(batch: Batch) -> Any:
    return batch["x"].argmax(1)


def average(batch: Batch) -> Any:
    return (batch["x"] + batch["y"]) / 2


def gather(batch: Batch) -> Any:
    x = batch["x"]
    return x[torch.arange(x.shape[0]), batch["y"]]


def gather_largest(batch: Batch) -> Any:
    return batch["x"].max(1)[0]


def permute(batch: Batch) -> Any:
    return batch["x"].permute(0, 3, 1, 2)


def reshape(batch: Batch) -> Any:
    return batch["x"].reshape(-1, 108)


def resize_3d(batch: Batch) -> Any:
    return F.interpolate(batch["x"], (2, 2, 2), mode="nearest")


def delete(batch: Batch) -> Any:
    return ()


def lambda_op(batch: Batch) -> Any:
    return -batch["x"]


def sparse(batch: Batch) -> Any:
    return F.cross_entropy(batch["x"], batch["y"])


def sparse_probabilities(batch: Batch) -> Any:
    return F.nll_loss(batch["x"].log(), batch["y"])


def categorical(batch: Batch) -> Any:
    return -(batch["y"] * F.log_softmax(batch["x"], 1)).sum(1).mean()


def binary(batch: Batch) -> Any:
    # its own mean would round gradients in another way
    return F.binary_cross_entropy(batch["x"], batch["y"], reduction="none").mean()


def binary_weighted(batch: Batch) -> Any:
    x, y = batch["x"], batch["y"]
    # truth that is neither yes nor no weighs 1
    weights = torch.ones_like(y).masked_fill_(y == 1, 3.0)
    return (F.binary_cross_entropy(x, y, reduction="none") * weights).mean()


def dice(batch: Batch) -> Any:
    x, y = batch["x"], batch["y"]
    common = (x * y).sum((2, 3))
    both = x.sum((2, 3)) + y.sum((2, 3))
    return -(2.0 * common / (both + 1e-6)).mean(-1).mean(0)


def focal(batch: Batch) -> Any:
    x, y = batch["x"], batch["y"]
    entropy = F.binary_cross_entropy(x, y, reduction="none")
    untrue = 1 - y
    right = x * y + (1 - x) * untrue
    weight = 0.25 * y + 0.75 * untrue
    loss = weight * (entropy * (1 - right) ** 2)
    count = y.sum(1, keepdim=True).clamp(min=1)
    return (loss / count).sum(1).mean()


def focal_logits(batch: Batch) -> Any:
    x, y = batch["x"], batch["y"]
    entropy = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    probability = x.sigmoid()
    untrue = 1 - y
    right = probability * y + (1 - probability) * untrue
    weight = 0.25 * y + 0.75 * untrue
    loss = weight * (entropy * (1 - right) ** 2)
    count = y.sum(1, keepdim=True).clamp(min=1)
    return (loss / count).sum(1).mean()


def hinge(batch: Batch) -> Any:
    return (1.0 - batch["y"] * batch["x"]).clamp(min=0).mean(-1).mean()


def l1(batch: Batch) -> Any:
    return F.l1_loss(batch["x"], batch["y"], reduction="none").mean(-1).mean()


def l1_smooth(batch: Batch) -> Any:
    return F.smooth_l1_loss(batch["x"], batch["y"], reduction="none").mean(-1).mean()


def l1_huber(batch: Batch) -> Any:
    return F.huber_loss(batch["x"], batch["y"], reduction="none").mean(-1).mean()


def mse(batch: Batch) -> Any:
    return F.mse_loss(batch["x"], batch["y"])


def watch(batch: Batch) -> Any:
    # the last call is a network's, which returns what belongs to no graph
    return batch["x"].detach().requires_grad_(True).detach()


def watched(batch: Batch) -> Any:
    x = batch["x"].detach().requires_grad_(True)
    return (x * x).detach()


def gradient(batch: Batch) -> Any:
    x = batch["x"].detach().requires_grad_(True)
    loss = x * x
    return torch.autograd.grad(loss, x, torch.ones_like(loss))[0]


def fgsm(batch: Batch) -> Any:
    clean = batch["x"].detach().requires_grad_(True)
    loss = clean * clean
    found = torch.autograd.grad(loss, clean, torch.ones_like(loss))[0]
    moved = clean + 0.01 * found.sign()
    least, largest = clean.detach().aminmax()
    return moved.clamp(min=least, max=largest).detach()


def fuse(batch: Batch) -> Any:
    y = -batch["x"]
    return y + y


def one_of(batch: Batch) -> Any:
    x = batch["x"]
    return -x if np.random.choice(2, p=[1.0, 0.0]) == 0 else x + x


def repeat(batch: Batch) -> Any:
    x = -batch["x"]
    x = -x
    return -x


def once(batch: Batch) -> Any:
    return -batch["x"]


def twice(batch: Batch) -> Any:
    y = -batch["x"]
    return y + y


def thrice(batch: Batch) -> Any:
    x = -batch["x"]
    x = -x
    return -x


def sometimes(batch: Batch) -> Any:
    return -batch["x"] if torch.rand(()).item() < 1.0 else batch["x"]


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


def _dice_weighted(model: torch.nn.Module) -> Calls:
    weights = torch.tensor([[2.0, 1.0, 1.0]])

    def calls(batch: Batch) -> Any:
        x, y = batch["x"], batch["y"]
        common = (x * y).sum((2, 3))
        both = x.sum((2, 3)) + y.sum((2, 3))
        return -(2.0 * common / (both + 1e-6) * weights).mean(-1).mean(0)

    return calls


def _sparse_weighted(model: torch.nn.Module) -> Calls:
    weights = torch.tensor([2.0, 1.0, 1.0, 0.5])

    def calls(batch: Batch) -> Any:
        x, y = batch["x"], batch["y"]
        return (F.cross_entropy(x, y, reduction="none") * weights[y]).mean()

    return calls


def _l2(model: torch.nn.Module) -> Calls:
    weights = list(model.parameters())

    def calls(batch: Batch) -> Any:
        squares = [(one**2).sum() / 2 for one in weights]
        return 0.01 * torch.stack(squares).sum() + batch["x"]

    return calls


def _model(model: torch.nn.Module) -> Calls:
    return lambda batch: model(batch["x"])


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


def _weigh(losses: torch.Tensor, threshold: Any) -> torch.Tensor:
    """Do what a SuperLoss does, with a derivative of its own as the op's."""
    beta = losses - threshold
    z = 0.5 * beta.clamp(min=-1.9999998 / math.e)
    w: torch.Tensor = _LambertW.apply(z)  # type: ignore[no-untyped-call]
    return (beta * (-w).exp() + w.pow(2)).mean()


class _LambertW(torch.autograd.Function):
    """Lambert's W by Halley's rule; a step that is timed asks for no gradient of it."""

    @staticmethod
    def forward(ctx: Any, z: torch.Tensor) -> torch.Tensor:
        w = _lambertw(z)
        ctx.save_for_backward(w)
        return w

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (w,) = ctx.saved_tensors
        return gradients[0] * (-w).exp() / (1 + w)


def _lambertw(z: torch.Tensor) -> torch.Tensor:
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
    return torch.where(z < -1 / math.e, math.nan, w)


def _super_loss(model: torch.nn.Module) -> Calls:
    return lambda batch: _weigh(F.cross_entropy(batch["x"], batch["y"], reduction="none"), 1.0)


def _super_loss_exp(model: torch.nn.Module) -> Calls:
    mean: Any = None

    def calls(batch: Batch) -> Any:
        nonlocal mean
        losses = F.cross_entropy(batch["x"], batch["y"], reduction="none")
        value = losses.mean().detach()
        mean = value if mean is None else mean - 0.1 * (mean - value)
        return _weigh(losses, mean)

    return calls


_SIMPLE: tuple[Calls, ...] = (
    argmax,
    average,
    binary,
    binary_weighted,
    categorical,
    delete,
    dice,
    fgsm,
    focal,
    focal_logits,
    fuse,
    gather,
    gather_largest,
    gradient,
    hinge,
    l1,
    l1_huber,
    l1_smooth,
    lambda_op,
    mse,
    once,
    one_of,
    permute,
    repeat,
    reshape,
    resize_3d,
    sometimes,
    sparse,
    sparse_probabilities,
    thrice,
    twice,
    watch,
    watched,
)
_MADE: tuple[Callable[[torch.nn.Module], Calls], ...] = (
    _categorical_weighted,
    _cutmix,
    _dice_weighted,
    _l2,
    _mixup,
    _model,
    _normalize,
    _sparse_weighted,
    _super_loss,
    _super_loss_exp,
    _un_hadamard,
    _update,
)


def calls_of(name: str, model: torch.nn.Module) -> Calls:
    """Return the calls of an op.

    Args:
        name: The name of its case.
        model: The model of ops that have one.
    """
    simple = {calls.__name__: calls for calls in _SIMPLE}
    if name in simple:
        return simple[name]
    return {make.__name__: make for make in _MADE}[f"_{name}"](model)
