"""Random programs as plain data: models, ops, and the actions on them.

A program is drawn in torch_drawing.py or tf_programs.py, and run by `…_by_hand.py` and
`…_on_fastnet.py`.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Optimizer:
    """An optimizer: its class, and arguments beside the learning rate."""

    kind: str
    rate: float
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """A model: what it is made of, its widths, and its optimizers by the epoch they begin in.

    Models of one `trunk` have their first layers in common.
    """

    kind: str
    width: tuple[int, int]
    optimizers: dict[int, Optimizer]
    trunk: bool = False


@dataclass(frozen=True)
class Op:
    """An op: what it is, what it reads and writes, its settings, and when it runs.

    With `turns` a schedule says in which epochs it is there: the first turn is epoch 1's.
    """

    name: str
    kind: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    mode: str | None = None
    ds_id: str | None = None
    turns: tuple[bool, ...] = ()

    def __str__(self) -> str:
        rest = {key: value for key, value in vars(self).items() if key in ("mode", "ds_id")}
        told = [f"{key}={value!r}" for key, value in {**self.settings, **rest}.items() if value]
        if self.turns:
            told.append(f"turns={self.turns}")
        arrow = f"{', '.join(self.reads)} -> {', '.join(self.writes)}"
        return f"{self.name}: {self.kind}({arrow}{''.join('; ' + one for one in told)})"


@dataclass(frozen=True)
class Open:
    """The network is entered; `around` is what is active until it is left."""

    mode: str
    epoch: int
    ds_id: str = ""
    wanted: tuple[str, ...] = ()
    warmup: bool = False
    around: str | None = None


@dataclass(frozen=True)
class Step:
    """A step with a batch of a size.

    `fails` is what the op "trip" raises in it, or where an interrupt comes in a compiled network:
    "in trace" or "in program".
    """

    size: int
    seed: int
    around: str | None = None
    fails: str | None = None


@dataclass(frozen=True)
class Close:
    """The network is closed."""


@dataclass(frozen=True)
class Change:
    """Something changes: a model, an optimizer or, between contexts, an op."""

    kind: str
    of: str
    value: Any = None


Action = Open | Step | Close | Change


@dataclass(frozen=True)
class Program:
    """A program.

    Attributes:
        seed: What it was drawn with, and what its first weights are drawn with.
        models: The models by name; `spare` ones are in no op at first.
        ops: The ops, in order.
        actions: What happens, in order.
        mixed: Whether the models have mixed precision.
        compile: The options of `CompileOptions` in a compiled network, or None.
    """

    seed: int
    models: dict[str, Model]
    ops: tuple[Op, ...]
    actions: tuple[Action, ...]
    mixed: bool = False
    compile: dict[str, Any] | None = None

    def __str__(self) -> str:
        lines = [f"program {self.seed}" + (", mixed precision" if self.mixed else "")]
        if self.compile is not None:
            lines[0] += f", compiled with {self.compile}"
        lines += [f"  model {name}: {model}" for name, model in self.models.items()]
        lines += [f"  op {op}" for op in self.ops]
        lines += [f"  {number:2d} {action}" for number, action in enumerate(self.actions)]
        return "\n".join(lines)


class Drawing:
    """Draws the parts of a program; the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.models: dict[str, Model] = {}
        self.ops: list[Op] = []

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def pick(self, *values: Any) -> Any:
        return self.random.choice(values)

    def add(
        self,
        kind: str,
        reads: str | tuple[str, ...],
        writes: str | tuple[str, ...],
        mode: str | None = None,
        ds_id: str | None = None,
        turns: tuple[bool, ...] = (),
        **settings: Any,
    ) -> None:
        reads = (reads,) if isinstance(reads, str) else reads
        writes = (writes,) if isinstance(writes, str) else writes
        name = f"{kind} {len(self.ops)}"
        self.ops.append(Op(name, kind, reads, writes, settings, mode, ds_id, turns))


class Side(ABC):
    """One of the ways to run a program."""

    @abstractmethod
    def open(self, action: Any) -> None:
        """Open the network."""

    @abstractmethod
    def close(self) -> None:
        """Close it."""

    @abstractmethod
    def step(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Run a step."""

    @abstractmethod
    def optimizer(self, name: str) -> Any:
        """Return the current optimizer of a model."""

    @abstractmethod
    def put_optimizer(self, name: str, optimizer: Any) -> None:
        """Replace the current optimizer of a model."""

    @abstractmethod
    def change_op(self, name: str, attribute: str, value: Any) -> None:
        """Set an attribute of an op."""
