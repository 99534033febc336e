"""Models, networks and hand-written loops of captured steps."""

from __future__ import annotations

import copy
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


def network_of(
    model: Any, compile: Any = QUICK, between: Iterable[Any] = (), dynamic: Any = None
) -> TorchNetwork:
    return TorchNetwork(
        [
            ModelOp(model, "x", "pred"),
            *between,
            LambdaOp(cross_entropy, ["pred", "y"], "loss", mode="!infer"),
            UpdateOp(model, "loss"),
        ],
        dynamic=dynamic,
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
        torch.testing.assert_close(
            tensor, right[name], rtol=rtol, atol=atol, equal_nan=True, msg=name
        )


class Pair:
    """A compiled network of a classifier, and the same training as a hand-written loop."""

    def __init__(
        self,
        make: Callable[[], nn.Module] = mlp,
        optimizer: Callable[[Any], torch.optim.Optimizer] = OPTIMIZERS["sgd"],
        compile: Any = QUICK,
        dynamic: Any = None,
    ) -> None:
        self.model = built(make, optimizer)
        self.other = copy.deepcopy(self.model)
        self.optimizer = optimizer(self.other.parameters())
        self.network = network_of(self.model, compile, dynamic=dynamic)

    def sides(self) -> list[tuple[Any, torch.optim.Optimizer]]:
        """Return both models with their optimizers."""
        return [(self.model, self.model.current_optimizer), (self.other, self.optimizer)]

    def step(self, batch: dict[str, torch.Tensor]) -> None:
        """Take a step in the open network and in the loop, and compare the losses."""
        random_state = torch.get_rng_state()
        loss = self.network.run_step(batch)["loss"]
        torch.set_rng_state(random_state)
        expected = by_hand(self.other, self.optimizer, batch)
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)

    def assert_same_weights(self) -> None:
        assert_same_weights(self.model, self.other)


def run_both(
    make: Callable[[Any], TorchNetwork],
    data: Iterable[dict[str, Any]],
    before: Callable[[int, TorchNetwork], None] | None = None,
    compile: Any = QUICK,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> TorchNetwork:
    """Train a network compiled and eagerly, and compare all results and weights.

    Args:
        make: Makes the network, with a value of `compile`.
        data: The batches.
        before: Called on each side before each step, with its number.
        compile: How the first network is compiled.
        rtol: The tolerance of results.
        atol: The absolute tolerance of results.

    Returns:
        The compiled network.
    """
    network, eager = make(compile), make(False)
    with network("train", 1), eager("train", 1):
        for place, batch in enumerate(data):
            results = []
            for each in (network, eager):
                if before is not None:
                    before(place, each)
                results.append(each.run_step(dict(batch)))
            found, expected = results
            torch.testing.assert_close(found, expected, rtol=rtol, atol=atol, equal_nan=True)
    for model, other in zip(network.models, eager.models, strict=True):
        assert_same_weights(model, other, rtol=max(rtol, 1e-4))
    return network


def captured(network: TorchNetwork) -> int:
    """Count the programs that were made, of a network that never fell back."""
    assert fallbacks(network) == []
    return len(network.traces)


def fallbacks(network: TorchNetwork) -> list[str]:
    """Return the reasons why steps run eagerly."""
    return [one.fallback for one in network.traces if one.fallback is not None]


@contextmanager
def falls_back(network: TorchNetwork, reason: str, mode: str = "train") -> Iterator[None]:
    """Enter a network whose steps must run eagerly, with one warning of one reason."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with network(mode, 1):
            yield
    (found,) = set(fallbacks(network))
    assert reason in found, found
    (told,) = [str(one.message) for one in caught if "run eagerly" in str(one.message)]
    assert found in told
