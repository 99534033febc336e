"""Models, batches and ops that the tests of networks share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp

Batch = dict[str, Any]


def mlp() -> nn.Module:
    """Return a network of (batch, 16) -> (batch, 4)."""
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def line() -> nn.Module:
    """Return the smallest model there is: (batch, 2) -> (batch, 1)."""
    return nn.Linear(2, 1)


class Image(nn.Module):
    """Layers that differ between training and evaluation: (batch, 1, 8, 8) -> (batch, 4)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(4 * 6 * 6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        out: torch.Tensor = self.head(self.drop(x.flatten(1)))
        return out


def batches(count: int, shape: tuple[int, ...] = (16,), seed: int = 0) -> list[Batch]:
    """Return batches of "x" and of class indices "t" below 4."""
    source = torch.Generator().manual_seed(seed)
    return [
        {
            "x": torch.randn(8, *shape, generator=source),
            "t": torch.randint(0, 4, (8,), generator=source),
        }
        for _ in range(count)
    ]


def seeded(make: Callable[[], Any], seed: int = 0) -> Any:
    """Call a function with torch's seed set, and leave the seed of everybody else alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def twins(make: Callable[[], nn.Module], seed: int = 0) -> tuple[nn.Module, nn.Module]:
    """Return two models of equal weights: one to build, one for the hand-written loop."""
    model = seeded(make, seed)
    return model, copy.deepcopy(model)


def built(model: nn.Module | Callable[[], nn.Module], optimizer: Any = "sgd", **kwargs: Any) -> Any:
    """Make a model, or a function that makes one, ready for a network."""
    make = (lambda: model) if isinstance(model, nn.Module) else model
    return fastnet.build(make, optimizer, **kwargs)


def sgd(lr: float = 0.1, **kwargs: Any) -> Callable[[Iterable[Any]], torch.optim.Optimizer]:
    """Return an optimizer_fn."""
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, **kwargs)


def supervised(model: Any, **update: Any) -> list[Any]:
    """Return the ops of a classifier."""
    return [
        ModelOp(model, "x", "y"),
        CrossEntropy(("y", "t"), "loss", from_logits=True),
        UpdateOp(model, "loss", **update),
    ]


def regression(model: Any, **update: Any) -> list[Any]:
    """Return the ops of a model that is to give zeros."""
    return [
        ModelOp(model, "x", "y"),
        LambdaOp(lambda y: (y**2).mean(), "y", "loss"),
        UpdateOp(model, "loss", **update),
    ]


def run(network: Any, batch: Any, mode: str = "infer", epoch: int = 1, **context: Any) -> Batch:
    """Enter a network for a single step."""
    with network(mode=mode, epoch=epoch, **context):
        result: Batch = network.run_step(batch)
    return result


def run_all(
    network: Any, data: Iterable[Batch], mode: str = "train", epoch: int = 1, **context: Any
) -> list[Batch]:
    """Enter a network and run a step for each batch."""
    with network(mode=mode, epoch=epoch, **context):
        return [network.run_step(batch) for batch in data]


def losses(results: Iterable[Batch], key: str = "loss") -> list[float]:
    """Return the losses of some steps, exactly."""
    return [float(result[key].double()) for result in results]


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copy all that a model would save."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same_weights(model: nn.Module, twin: nn.Module | dict[str, torch.Tensor]) -> bool:
    """Return whether two models are equal bit for bit."""
    own = model.state_dict()
    other = twin.state_dict() if isinstance(twin, nn.Module) else twin
    return own.keys() == other.keys() and all(torch.equal(own[name], other[name]) for name in own)


class Pipeline:
    """Looks like FastEstimator's Pipeline from outside, and notes how it is used."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.log: list[Any] = []

    def __call__(self, mode: str, epoch: int, ds_id: str, shuffle: bool) -> Pipeline:
        self.log.append((mode, epoch, ds_id, shuffle))
        return self

    def __enter__(self) -> Any:
        self.log.append("enter")
        return self.data

    def __exit__(self, *exc: object) -> None:
        self.log.append("exit")


def no_gradients(*models: nn.Module) -> bool:
    """Return whether no parameter holds a gradient."""
    return all(parameter.grad is None for model in models for parameter in model.parameters())


def is_free(network: TorchNetwork) -> bool:
    """Return whether a network can be entered, and shows nothing of an earlier context."""
    shown = (
        network.ctx_inputs,
        network.ctx_gpu_inputs,
        network.ctx_outputs,
        network.ctx_ops,
        network.ctx_postprocessing,
        network.ctx_slicers,
        network.ctx_models,
        network.ctx_state,
    )
    with pytest.raises(ValueError, match=r"is not open|needs a loaded epoch"):
        network.run_step({})
    return not any(shown)
