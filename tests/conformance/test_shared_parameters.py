"""Models that share parameters: scheduled ones, tied ones, and two heads on one encoder.

All models are products of kernels without biases. Two of them have the kernel "shared". A
hand-written loop in torch is the oracle of both frameworks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import fastnet
from fastnet import CompileOptions
from tests.conformance.agreement import assert_same
from tests.conformance.frameworks import FRAMEWORKS, Array, Framework, tf

# Rates that differ show which of two optimizers has updated a shared kernel.
RATES = {"a": 0.1, "c": 0.03, "d": 0.05}
MOMENTUM = 0.9
EPOCHS, STEPS = range(1, 5), 3
SHAPES = {"shared": (3, 4), "a": (4, 3), "c": (4, 3), "d": (3, 1)}
WAYS = {
    "torch": ("torch", False),
    "torch-compiled": ("torch", CompileOptions(backend="eager")),
    "tf-static": ("tf-static", False),
    "tf-eager": ("tf-eager", False),
    "tf-compiled": ("tf-static", True),
}


class Player(NamedTuple):
    """A model that is updated by how far the output of a chain of models is from a goal."""

    model: str
    path: tuple[str, ...]
    goal: float


class Case(NamedTuple):
    """A few models, and how they are updated.

    Attributes:
        kernels: The kernels of each model. "shared.T" is the transpose of the shared one.
        players: The updates, in order. "generator" is model "a", and from epoch 3 on model "c".
        interleaved: Whether each update is followed by other ops, such as the next forward pass.
        deferred: Which updates are deferred.
        merge: The `merge_grad` of the UpdateOps.
    """

    kernels: dict[str, list[str]]
    players: tuple[Player, ...]
    interleaved: bool = False
    deferred: tuple[int, ...] = ()
    merge: int = 1

    def passes(self) -> list[list[tuple[int, Player]]]:
        """List the players whose gradients are computed before the next update, in order."""
        players = list(enumerate(self.players))
        return [[one] for one in players] if self.interleaved else [players]


MODELS = {
    "scheduled": Case(
        {"a": ["shared", "a"], "c": ["shared", "c"], "d": ["d"]},
        (Player("generator", ("generator", "d"), 1.0), Player("d", ("generator", "d"), 0.0)),
    ),
    "tied": Case(
        {"a": ["shared"], "c": ["shared.T"], "d": ["d"]},
        (
            Player("a", ("a",), 1.0),
            Player("c", ("a", "c"), 0.5),
            Player("d", ("a", "c", "d"), 0.0),
        ),
    ),
    "heads": Case(
        {"a": ["shared", "a"], "c": ["shared", "c"]},
        (Player("a", ("a",), 1.0), Player("c", ("c",), -1.0)),
    ),
}
# Model "a" is updated again after model "c".
REPEATED = MODELS["heads"]._replace(players=(*MODELS["heads"].players, Player("a", ("a",), 0.5)))
CASES = {
    **MODELS,
    **{f"{name}-merged": case._replace(merge=2) for name, case in MODELS.items()},
    **{f"{name}-interleaved": case._replace(interleaved=True) for name, case in MODELS.items()},
    **{
        f"{name}-deferred": case._replace(interleaved=True, deferred=(0, 1, 2), merge=2)
        for name, case in {**MODELS, "repeated": REPEATED}.items()
    },
    "scheduled-first-deferred": MODELS["scheduled"]._replace(interleaved=True, deferred=(0,)),
    "repeated": REPEATED,
}


def draw_kernels() -> dict[str, Array]:
    """Draw the kernels that training starts from."""
    source = np.random.default_rng(0)
    return {name: source.normal(0, 0.5, shape).astype("float32") for name, shape in SHAPES.items()}


def draw_batches(epoch: int) -> list[Array]:
    """Draw the inputs of an epoch."""
    source = np.random.default_rng(epoch)
    return [source.normal(size=(6, 3)).astype("float32") for _ in range(STEPS)]


class Product(torch.nn.Module):
    """A product with a kernel, or with its transpose."""

    def __init__(self, kernel: torch.nn.Parameter, is_transposed: bool) -> None:
        super().__init__()
        self.kernel = kernel
        self.is_transposed = is_transposed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.kernel.T if self.is_transposed else self.kernel)


class Transposed(tf.keras.layers.Layer if tf else object):  # type: ignore[misc]
    """A product with the transpose of another layer's kernel."""

    def __init__(self, other: Any) -> None:
        super().__init__()
        self.other = other

    def call(self, x: Any) -> Any:
        return tf.matmul(x, self.other.kernel, transpose_b=True)


class TorchModels:
    """Models of shared blocks in torch."""

    def __init__(self) -> None:
        drawn = draw_kernels().items()
        self.kernels = {name: torch.nn.Parameter(torch.tensor(kernel)) for name, kernel in drawn}

    def make(self, kernels: Sequence[str]) -> Any:
        return torch.nn.Sequential(
            *[Product(self.kernels[name.removesuffix(".T")], name[-2:] == ".T") for name in kernels]
        )

    def values(self) -> dict[str, Array]:
        return {name: one.detach().numpy().copy() for name, one in self.kernels.items()}


class TFModels:
    """Models of shared layers in Keras."""

    def __init__(self) -> None:
        self.layers = {}
        for name, kernel in draw_kernels().items():
            self.layers[name] = layer = tf.keras.layers.Dense(kernel.shape[1], use_bias=False)
            layer.build((None, len(kernel)))
            layer.set_weights([kernel])

    def make(self, kernels: Sequence[str]) -> Any:
        layers = [
            Transposed(self.layers[name[:-2]]) if name[-2:] == ".T" else self.layers[name]
            for name in kernels
        ]
        width = SHAPES["shared"][1] if kernels[0] == "shared.T" else SHAPES[kernels[0]][0]
        return tf.keras.Sequential([tf.keras.Input((width,)), *layers])

    def values(self) -> dict[str, Array]:
        return {name: np.array(layer.get_weights()[0]) for name, layer in self.layers.items()}


def make_ops(fw: Framework, models: Any, case: Case, lib: Any = fastnet) -> list[Any]:
    """Make the ops of a case, of fastnet or of FastEstimator."""
    lambda_op, model_op = lib.op.tensorop.LambdaOp, lib.op.tensorop.model.ModelOp
    built = {
        name: lib.build(
            functools.partial(models.make, kernels),
            fw.sgd(RATES[name], momentum=MOMENTUM),
            model_name=name,
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
                    ops.append(scheduled(lambda m, r=read, k=key: model_op(m, r, k), name))
            error = lambda y, goal=player.goal: fw.mean((y - goal) ** 2)  # noqa: E731
            ops.append(lambda_op(error, key, f"loss{place}"))
        for place, player in players:
            settings = {"merge_grad": case.merge, "defer": place in case.deferred}
            update = lib.op.tensorop.model.UpdateOp
            update = functools.partial(update, loss_name=f"loss{place}", **settings)
            ops.append(scheduled(update, player.model))
    if case.interleaved:
        # An UpdateOp that is not the last op is deferred only if it says so.
        ops.append(lambda_op(lambda x: x, "x", "last"))
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
        drawn = draw_kernels().items()
        self.kernels = {name: torch.tensor(one, requires_grad=True) for name, one in drawn}
        self.owned = {
            model: [self.kernels[name.removesuffix(".T")] for name in names]
            for model, names in case.kernels.items()
        }
        self.optimizers = {
            model: torch.optim.SGD(owned, RATES[model], momentum=MOMENTUM)
            for model, owned in self.owned.items()
        }
        self.merged: dict[tuple[int, str], list[Any]] = {}
        self.generator = "a"

    def train(self) -> Iterator[dict[str, Array]]:
        """Train, and yield the kernels after each step."""
        for epoch in EPOCHS:
            self.generator = "a" if epoch < 3 else "c"
            for x in draw_batches(epoch):
                self.step(torch.tensor(x))
                yield {name: one.detach().numpy().copy() for name, one in self.kernels.items()}

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
                own = self.kernels[kernel.removesuffix(".T")]
                x = x @ (own.T if kernel.endswith(".T") else own)
        return ((x - player.goal) ** 2).mean()

    def update(self, place: int, model: str, gradients: Any, deferred: dict[str, Any]) -> None:
        merged = self.merged.setdefault((place, model), [])
        merged.append(gradients)
        if len(merged) < self.case.merge:
            return
        means = [sum(parts) / len(merged) for parts in zip(*merged, strict=True)]
        merged.clear()
        waits = place in self.case.deferred
        if self.accumulates:
            # One step of the optimizer takes all that was added up until then.
            self.add(model, means)
            waits, means = waits or not self.case.interleaved, []
        apply = functools.partial(self.apply, model, means)
        if not waits:
            if self.accumulates:
                deferred.pop(model, None)
            apply()
        elif self.accumulates:
            deferred[model] = [apply]
        else:
            deferred.setdefault(model, []).append(apply)

    def add(self, model: str, gradients: Sequence[torch.Tensor]) -> None:
        for kernel, gradient in zip(self.owned[model], gradients, strict=True):
            kernel.grad = gradient if kernel.grad is None else kernel.grad + gradient

    def apply(self, model: str, gradients: Sequence[torch.Tensor]) -> None:
        if gradients:
            self.add(model, gradients)
        self.optimizers[model].step()
        self.optimizers[model].zero_grad()


@pytest.mark.parametrize(
    ("case", "way"),
    [
        pytest.param(case, way, id=f"{way}-{name}")
        for name, case in CASES.items()
        for way in WAYS
        # Compilation takes long, so only one order of updates is compiled.
        if not way.endswith("compiled") or not (case.interleaved or case.merge > 1)
    ],
)
def test_weights_are_those_of_a_hand_written_loop(way: str, case: Case) -> None:
    name, compiled = WAYS[way]
    fw = FRAMEWORKS[name]
    models: Any = TorchModels() if fw.target == "torch" else TFModels()
    network: Any = fw.network_class(make_ops(fw, models, case), compile=compiled)
    expected = HandWrittenLoop(case, accumulates=fw.target == "torch").train()
    for epoch in EPOCHS:
        with fw.opened(network, "train", epoch):
            for step, x in enumerate(draw_batches(epoch)):
                network.run_step({"x": fw.tensor(x)})
                assert_same(models.values(), next(expected), f"epoch {epoch}, step {step}")
    if compiled:
        assert [one.fallback for one in network.traces if one.fallback] == []
