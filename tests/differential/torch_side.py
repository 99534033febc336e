"""What both ways to run a torch program share: modules, batches, and what is compared."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.differential import programs
from tests.differential.programs import Model, Optimizer, Program, Step

Tensors = dict[str, Any]

AROUND: dict[str | None, Callable[[], AbstractContextManager[Any]]] = {
    None: nullcontext,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
}

# what ops call: the same function on both sides
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "halve": lambda x: x * 0.5,
    "shift": lambda x: x + 0.25,
    "tanh": lambda x: torch.tanh(x),
    "center": lambda x: x - x.mean(),
    "sum": lambda x, y: x + y,
    "no less than 0.1": lambda x: torch.where(x > 0.1, x, 0.1 * x),
    "against ones": lambda x: nn.functional.softplus(-x).mean(),
    "against zeros": lambda x: nn.functional.softplus(x).mean(),
    "infinite at times": lambda x: torch.where(x.mean() > 1.0, x * float("inf"), x),
    "branch on size": lambda x: x * 2 if x.shape[0] > 4 else x * 3,
    "dropout": lambda x: nn.functional.dropout(x, 0.25),
    "torch noise": lambda x: x + 0.1 * torch.rand_like(x),
    "numpy noise": lambda x: x + 0.1 * torch.as_tensor(np.random.normal(size=x.shape)).to(x),
    "numpy factor": lambda x: x * float(np.random.uniform(0.5, 1.5)),
    "python noise": lambda x: x + random.uniform(-0.1, 0.1),
}

# what forwards of ops are replaced by: of a value, and of a list of them
PATCHES: dict[str, Callable[[Any, Any], Any]] = {
    "tripled": lambda data, state: (data[0] if isinstance(data, list) else data) * 3,
    "negated": lambda data, state: -(data[0] if isinstance(data, list) else data),
}


class Trip(Exception):
    """What an op raises once."""


class Interrupt(BaseException):
    """What comes from outside."""


FAILURES: dict[str, type[BaseException]] = {"error": Trip, "interrupt": Interrupt}


class Tripwire:
    """Raises in an op, if the step is to fail; the op holds nothing else of a side."""

    failing: str | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.failing == "in trace" and hasattr(x, "fake_mode"):
            raise Interrupt("in trace")
        kind = FAILURES.get(self.failing or "")
        if kind is not None:
            self.failing = None
            raise kind("once")
        return x


def make_modules(program: Program) -> dict[str, nn.Module]:
    """Make a program's models, of the same weights each time."""
    torch.manual_seed(program.seed)
    trunks: dict[int, nn.Module] = {}
    return {name: _make_module(model, trunks) for name, model in program.models.items()}


def _make_module(model: Model, trunks: dict[int, nn.Module]) -> nn.Module:
    first, last = model.width
    if model.trunk:
        trunk = trunks.setdefault(first, nn.Sequential(nn.Linear(first, 5), nn.Tanh()))
        return nn.Sequential(trunk, nn.Linear(5, last))
    if model.kind == "linear":
        return nn.Sequential(nn.Linear(first, last))
    if model.kind == "mlp":
        return nn.Sequential(nn.Linear(first, 5), nn.Tanh(), nn.Linear(5, last))
    if model.kind == "norm":
        return nn.Sequential(nn.Linear(first, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, last))
    if model.kind == "dropout":
        return nn.Sequential(nn.Linear(first, 5), nn.Tanh(), nn.Dropout(), nn.Linear(5, last))
    if model.kind == "bag":
        return nn.Sequential(nn.EmbeddingBag(first, last, sparse=True))
    if model.kind == "bag and linear":
        return nn.Sequential(nn.EmbeddingBag(first, 4, sparse=True), nn.Linear(4, last))
    assert model.kind == "conv"
    return nn.Sequential(
        nn.Unflatten(1, (1, first)),
        nn.Conv1d(1, 2, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * first, last),
    )


def make_optimizer(spec: Optimizer, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Make an optimizer."""
    kind: Any = getattr(torch.optim, spec.kind)
    made: torch.optim.Optimizer = kind(parameters, lr=spec.rate, **spec.arguments)
    return made


def make_batch(step: Step) -> Tensors:
    """Make the batch of a step."""
    source = torch.Generator().manual_seed(step.seed)

    def normal(width: int) -> torch.Tensor:
        return torch.randn(step.size, width, generator=source)

    truth = torch.randint(3, (step.size,), generator=source)
    onehot = nn.functional.one_hot(truth, 3)
    return {
        "x": normal(6),
        "z": normal(4),
        "target": normal(3),
        "t": truth,
        "onehot": onehot.float(),
        "words": torch.randint(12, (step.size, 3), generator=source),
        "weight": torch.tensor(float(step.seed % 4)),
        "note": "kept",
    }


class Side(programs.Side):
    """One of the two ways to run a program.

    Attributes:
        program: The program.
        modules: Its models.
        extras: Learnable parameters that are in no model.
        counts: How often hooks were called.
        hooks: What takes hooks away again.
        made: All optimizers of each model, those of old too.
        parameters: All parameters that there ever were, in order.
        tripwire: Raises in the ops "trip".
        in_program: What a compiled program is interrupted with.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.modules: dict[str, Any] = make_modules(program)
        self.extras = {name: nn.Parameter(torch.full((), 1.5)) for name in program.models}
        self.counts: Counter[str] = Counter()
        self.hooks: list[Any] = []
        self.made: dict[str, list[torch.optim.Optimizer]] = {name: [] for name in program.models}
        self.parameters: dict[int, nn.Parameter] = {}
        self.tripwire = Tripwire()
        self.in_program: str | None = None

    @abstractmethod
    def insert_op(self, place: int, function: str, key: str) -> None:
        """Put an op that calls a function among the ops."""

    def make(self, name: str, spec: Optimizer, parameters: Any = None) -> torch.optim.Optimizer:
        """Make an optimizer of a model, and remember it."""
        given = self.modules[name].parameters() if parameters is None else parameters
        made = make_optimizer(spec, given)
        self.made[name].append(made)
        return made

    def count(self, hook: str) -> None:
        """Take note of a call of a hook.

        Those on models that are trained beside are called or not as the framework likes it: what
        backward passes through them, nobody asks for.
        """
        if len(self.modules) == 1:
            self.counts[hook] += 1

    def observe(self) -> Tensors:
        """Copy all that a step may change."""
        seen: Tensors = {"calls": dict(self.counts)}
        for name, module in self.modules.items():
            for key, value in module.state_dict().items():
                seen[f"{name}.{key}"] = value.detach().clone()
            for parameter in module.parameters():
                self.parameters.setdefault(id(parameter), parameter)
            for place, optimizer in enumerate(self.made[name]):
                seen[f"optimizer {place} of {name}"] = _state_of(optimizer)
        for name, extra in self.extras.items():
            seen[f"extra of {name}"] = extra.detach().clone()
            seen[f"gradient of the extra of {name}"] = _copy(extra.grad)
        for place, parameter in enumerate(self.parameters.values()):
            seen[f"gradient {place}"] = _copy(parameter.grad)
        return seen


def _state_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [
        (
            {key: value for key, value in group.items() if key != "params"},
            [_copy(optimizer.state.get(parameter)) for parameter in group["params"]],
        )
        for group in optimizer.param_groups
    ]


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        # Sparse ones may have their entries in another order.
        return value.detach().to_dense().clone()
    if isinstance(value, dict):
        return {key: _copy(one) for key, one in value.items()}
    return value
