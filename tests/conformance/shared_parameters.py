"""Programs whose models share parameters, for any library, and a hand-written loop beside them.

All models are products of kernels without biases. Two of them have the kernel "shared".
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import torch

Array = np.ndarray[Any, Any]

# Rates that differ show which of two optimizers has updated a shared kernel.
RATES = {"a": 0.1, "c": 0.03, "d": 0.05}
MOMENTUM = 0.9
EPOCHS, STEPS = range(1, 5), 3
SHAPES = {"shared": (3, 4), "a": (4, 3), "c": (4, 3), "d": (3, 1)}


class Player(NamedTuple):
    """A model that is updated by how far the output of a chain of models is from a goal."""

    model: str
    path: tuple[str, ...]
    goal: float


@dataclasses.dataclass(frozen=True)
class Case:
    """A few models, and how they are updated.

    Attributes:
        name: What the test is called by.
        kernels: The kernels of each model. "shared.T" is the transpose of the shared one.
        players: The updates, in order. "generator" is model "a", and from epoch 3 on model "c".
        interleaved: Whether each update is followed by other ops, such as the next forward pass.
        defer: Which updates are deferred: "none", "first" or "all".
        merge: The `merge_grad` of the UpdateOps.
    """

    name: str
    kernels: dict[str, list[str]]
    players: tuple[Player, ...]
    interleaved: bool = False
    defer: str = "none"
    merge: int = 1

    def __repr__(self) -> str:
        order = "interleaved" if self.interleaved else "trailing"
        return f"{self.name}-{order}-defer_{self.defer}-merge_{self.merge}"

    def is_deferred(self, place: int) -> bool:
        return self.defer == "all" or (self.defer == "first" and place == 0)

    def passes(self) -> list[list[tuple[int, Player]]]:
        """List the players whose gradients are computed before the next update, in order."""
        players = list(enumerate(self.players))
        return [[one] for one in players] if self.interleaved else [players]


MODELS = (
    Case(
        "scheduled",
        {"a": ["shared", "a"], "c": ["shared", "c"], "d": ["d"]},
        (
            Player("generator", ("generator", "d"), 1.0),
            Player("d", ("generator", "d"), 0.0),
        ),
    ),
    Case(
        "tied",
        {"a": ["shared"], "c": ["shared.T"], "d": ["d"]},
        (
            Player("a", ("a",), 1.0),
            Player("c", ("a", "c"), 0.5),
            Player("d", ("a", "c", "d"), 0.0),
        ),
    ),
    Case(
        "heads",
        {"a": ["shared", "a"], "c": ["shared", "c"]},
        (Player("a", ("a",), 1.0), Player("c", ("c",), -1.0)),
    ),
)
# Model "a" is updated again after model "c".
REPEATED = dataclasses.replace(
    MODELS[-1], name="repeated", players=(*MODELS[-1].players, Player("a", ("a",), 0.5))
)
CASES = [
    *(
        dataclasses.replace(case, interleaved=interleaved, defer=defer, merge=merge)
        for case in MODELS
        for interleaved, defer, merge in (
            (False, "none", 1),
            (False, "none", 2),
            (True, "none", 1),
            (True, "first", 1),
            (True, "all", 1),
            (True, "all", 2),
        )
    ),
    REPEATED,
    dataclasses.replace(REPEATED, interleaved=True, defer="all", merge=2),
]


def draw_kernels() -> dict[str, Array]:
    """Draw the kernels that training starts from."""
    source = np.random.default_rng(0)
    return {name: source.normal(0, 0.5, shape).astype("float32") for name, shape in SHAPES.items()}


def values_of(kernels: dict[str, Any]) -> dict[str, Array]:
    """Copy the values of kernels in torch."""
    return {name: kernel.detach().cpu().numpy().copy() for name, kernel in kernels.items()}


def draw_batches(epoch: int) -> list[Array]:
    """Draw the inputs of an epoch."""
    source = np.random.default_rng(epoch)
    return [source.normal(size=(6, 3)).astype("float32") for _ in range(STEPS)]


class Block(torch.nn.Module):
    """A product with a kernel, or with its transpose."""

    def __init__(self, kernel: torch.nn.Parameter, is_transposed: bool) -> None:
        super().__init__()
        self.kernel = kernel
        self.is_transposed = is_transposed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.kernel.T if self.is_transposed else self.kernel)


class Transposed(tf.keras.layers.Layer):  # type: ignore[misc]
    """A product with the transpose of another layer's kernel."""

    def __init__(self, other: Any) -> None:
        super().__init__()
        self.other = other

    def call(self, x: Any) -> Any:
        return tf.matmul(x, self.other.kernel, transpose_b=True)


class TorchModels:
    """Models of shared blocks in torch."""

    def __init__(self) -> None:
        self.kernels = {
            name: torch.nn.Parameter(torch.tensor(kernel))
            for name, kernel in draw_kernels().items()
        }
        self.blocks = {name: Block(kernel, False) for name, kernel in self.kernels.items()}

    def make(self, kernels: Sequence[str]) -> Any:
        return torch.nn.Sequential(
            *[
                Block(self.kernels[name[:-2]], True) if name.endswith(".T") else self.blocks[name]
                for name in kernels
            ]
        )

    def optimizer(self, rate: float) -> Any:
        return lambda parameters: torch.optim.SGD(parameters, rate, momentum=MOMENTUM)

    def values(self) -> dict[str, Array]:
        return values_of(self.kernels)


class TFModels:
    """Models of shared layers in Keras."""

    def __init__(self) -> None:
        self.layers = {
            name: tf.keras.layers.Dense(outputs, use_bias=False, name=f"block_{name}")
            for name, (_, outputs) in SHAPES.items()
        }
        for name, kernel in draw_kernels().items():
            self.layers[name].build((None, len(kernel)))
            self.layers[name].set_weights([kernel])

    def make(self, kernels: Sequence[str]) -> Any:
        layers = [
            Transposed(self.layers[name[:-2]]) if name.endswith(".T") else self.layers[name]
            for name in kernels
        ]
        width = SHAPES["shared"][1] if kernels[0] == "shared.T" else SHAPES[kernels[0]][0]
        return tf.keras.Sequential([tf.keras.Input((width,)), *layers])

    def optimizer(self, rate: float) -> Any:
        return lambda: tf.keras.optimizers.SGD(rate, momentum=MOMENTUM)

    def values(self) -> dict[str, Array]:
        return {name: np.array(layer.get_weights()[0]) for name, layer in self.layers.items()}


def make_ops(lib: Any, mean: Callable[[Any], Any], models: Any, case: Case) -> list[Any]:
    """Make the ops of a case with fastnet or FastEstimator as `lib`."""
    op = lib.op.tensorop
    built = {
        name: lib.build(
            functools.partial(models.make, kernels), models.optimizer(RATES[name]), model_name=name
        )
        for name, kernels in case.kernels.items()
    }

    def scheduled(make: Callable[[Any], Any], name: str) -> Any:
        if name != "generator":
            return make(built[name])
        return lib.schedule.EpochScheduler({1: make(built["a"]), 3: make(built["c"])})

    ops: list[Any] = []
    for players in case.passes():
        known = {"x"}
        for place, player in players:
            key = "x"
            for name in player.path:
                read, key = key, f"{key}.{name}"
                if key not in known:
                    known.add(key)
                    ops.append(scheduled(lambda m, r=read, k=key: op.model.ModelOp(m, r, k), name))
            ops.append(
                op.LambdaOp(lambda y, goal=player.goal: mean((y - goal) ** 2), key, f"loss{place}")
            )
        for place, player in players:
            settings = {"merge_grad": case.merge, "defer": case.is_deferred(place)}
            ops.append(
                scheduled(
                    lambda m, n=place, s=settings: op.model.UpdateOp(m, f"loss{n}", **s),
                    player.model,
                )
            )
    if case.interleaved:
        # An UpdateOp that is not the last op is deferred only if it says so.
        ops.append(op.LambdaOp(lambda x: x, "x", "last"))
    return ops


class HandWrittenLoop:
    """Trains the kernels of a case without a library.

    In torch, gradients add up in the parameters, and an optimizer clears them after its step. In
    TensorFlow, each update applies its own gradients.

    Args:
        case: The case.
        accumulates: Whether gradients add up, as in torch.
    """

    def __init__(self, case: Case, accumulates: bool) -> None:
        self.case = case
        self.accumulates = accumulates
        self.kernels = {
            name: torch.tensor(kernel, requires_grad=True)
            for name, kernel in draw_kernels().items()
        }
        self.owned = {
            model: [self.kernels[name.partition(".")[0]] for name in names]
            for model, names in case.kernels.items()
        }
        self.optimizers = {
            model: torch.optim.SGD(owned, RATES[model], momentum=MOMENTUM)
            for model, owned in self.owned.items()
        }
        self.sums: dict[tuple[int, str], tuple[int, list[torch.Tensor]]] = {}
        self.generator = "a"

    def train(self) -> Iterator[dict[str, Array]]:
        """Train, and yield the kernels after each step."""
        for epoch in EPOCHS:
            self.generator = "a" if epoch < 3 else "c"
            for x in draw_batches(epoch):
                self.step(torch.tensor(x))
                yield {
                    name: one.detach().cpu().numpy().copy() for name, one in self.kernels.items()
                }

    def step(self, x: torch.Tensor) -> None:
        deferred: dict[str, list[Callable[[], None]]] = {}
        for players in self.case.passes():
            gradients = [
                torch.autograd.grad(self.loss(one, x), self.owned[self.model(one.model)])
                for _, one in players
            ]
            for (place, player), found in zip(players, gradients, strict=True):
                self.update(place, self.model(player.model), found, deferred)
        for waiting in deferred.values():
            for apply in waiting:
                apply()

    def model(self, name: str) -> str:
        return self.generator if name == "generator" else name

    def loss(self, player: Player, x: torch.Tensor) -> torch.Tensor:
        for name in player.path:
            for kernel in self.case.kernels[self.model(name)]:
                own = self.kernels[kernel.partition(".")[0]]
                x = x @ (own.T if kernel.endswith(".T") else own)
        return ((x - player.goal) ** 2).mean()

    def update(
        self,
        place: int,
        model: str,
        gradients: Sequence[torch.Tensor],
        deferred: dict[str, list[Callable[[], None]]],
    ) -> None:
        times, sums = self.sums.get((place, model), (0, [torch.zeros(())] * len(gradients)))
        times, sums = times + 1, [a + b for a, b in zip(sums, gradients, strict=True)]
        if times < self.case.merge:
            self.sums[place, model] = times, sums
            return
        self.sums.pop((place, model), None)
        means = [total / times for total in sums]
        if not self.accumulates:
            apply = functools.partial(self.apply, model, means)
            if self.case.is_deferred(place):
                deferred.setdefault(model, []).append(apply)
            else:
                apply()
            return
        self.add(model, means)
        if self.case.is_deferred(place) or not self.case.interleaved:
            deferred[model] = [functools.partial(self.apply, model)]
        else:
            deferred.pop(model, None)
            self.apply(model)

    def add(self, model: str, gradients: Sequence[torch.Tensor]) -> None:
        for kernel, gradient in zip(self.owned[model], gradients, strict=True):
            kernel.grad = gradient if kernel.grad is None else kernel.grad + gradient

    def apply(self, model: str, gradients: Sequence[torch.Tensor] = ()) -> None:
        if gradients:
            self.add(model, gradients)
        self.optimizers[model].step()
        self.optimizers[model].zero_grad()
