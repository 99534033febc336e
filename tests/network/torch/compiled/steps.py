"""Models, networks and loops by hand that steps are captured of."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fastnet import CompileOptions, build
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp

QUICK = CompileOptions(backend="eager")

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.05),
    "momentum": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, dampening=0.1),
    "nesterov": lambda ps: torch.optim.SGD(
        ps, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-2
    ),
    "adam": lambda ps: torch.optim.Adam(ps, lr=1e-2, weight_decay=1e-2),
    "amsgrad": lambda ps: torch.optim.Adam(ps, lr=1e-2, amsgrad=True, maximize=True),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=1e-2),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=1e-2),
    "rmsprop_centered": lambda ps: torch.optim.RMSprop(
        ps, lr=1e-2, momentum=0.5, centered=True, weight_decay=1e-2
    ),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, lr=1e-2, lr_decay=0.01),
}


def mlp(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 8, bias=False),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        *([nn.Dropout(dropout)] if dropout else []),
        nn.Linear(8, 3),
    )


def built(
    make: Callable[[], nn.Module] = mlp, optimizer: Any = OPTIMIZERS["sgd"], seed: int = 0
) -> Any:
    torch.manual_seed(seed)
    return build(make, optimizer_fn=optimizer)


def cross_entropy(pred: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(pred, label)


def network_of(model: Any, compile: Any = QUICK, between: Iterable[Any] = ()) -> TorchNetwork:
    return TorchNetwork(
        [
            ModelOp(model, "x", "pred"),
            *between,
            LambdaOp(cross_entropy, ["pred", "y"], "loss", mode="!infer"),
            UpdateOp(model, "loss"),
        ],
        compile=compile,
    )


def batches(count: int, size: int = 5, seed: int = 1) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "x": torch.randn(size, 6, generator=generator),
            "y": torch.randint(0, 3, (size,), generator=generator),
        }
        for _ in range(count)
    ]


def by_hand(
    model: Any, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]
) -> torch.Tensor:
    """Take a step as a program without fastnet does."""
    model.train()
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(batch["x"]), batch["y"])
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def assert_same_weights(
    one: Any, other: Any, rtol: float = 1e-4, of_largest: float = 0.0, least: float = 1e-6
) -> None:
    """Compare weights and buffers, up to some of each or of the largest of its tensor."""
    left, right = one.state_dict(), other.state_dict()
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        atol = max(least, of_largest * float(tensor.abs().max()))
        torch.testing.assert_close(tensor, right[name], rtol=rtol, atol=atol, msg=name)


def captured(network: TorchNetwork) -> int:
    """Count the programs that were made, of a network that never fell back."""
    assert [one.fallback for one in network.traces if one.fallback] == []
    return len(network.traces)


@contextmanager
def falls_back(network: TorchNetwork, reason: str, mode: str = "train") -> Iterator[None]:
    """Enter a network whose steps must run eagerly, with one warning of one reason."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with network(mode, 1):
            yield
    (found,) = {one.fallback for one in network.traces if one.fallback}
    assert reason in found, found
    (told,) = [str(one.message) for one in caught if "run eagerly" in str(one.message)]
    assert found in told
