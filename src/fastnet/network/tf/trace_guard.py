"""Detects changes of the ops, models and optimizers that a graph was traced from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakSet

from fastnet.backend.model_metadata import NAMES, get_metadata, holder_of, name_of
from fastnet.backend.tf._keras_internals import BOOKKEEPING
from fastnet.backend.tf.models import all_layers
from fastnet.guards import Snapshot
from fastnet.op.op import with_inner_ops
from fastnet.types import Model
from fastnet.util.warnings import warn

# A change of these attributes builds another plan, and thereby another program.
_PLAN_ATTRIBUTES = ("mode", "ds_id", "inputs", "outputs", "_last_resolved")

# Guards of all networks: a trace changes ops that other networks share.
_live: WeakSet[TraceGuard] = WeakSet()
# Held while `_live` is changed or copied.
_lock = Lock()


class ActiveItems(NamedTuple):
    """The ids of the current values of schedulers, and of the ops."""

    scheduled: list[int]
    ops: list[int]


class GuardChange(NamedTuple):
    """The first change that a guard has found: its path, and whether a number changed."""

    path: str
    is_number: bool

    @property
    def description(self) -> str:
        """The change as a reason why a program is not valid."""
        return f"{self.path} has changed"


class TraceGuard:
    """A snapshot of ops and of their models, and perhaps of the optimizers.

    All programs that were traced in the same state share one.

    Args:
        models: The models.
        ops: The ops.
        compares_optimizers: Whether to compare the optimizers, because the steps use them.
    """

    def __init__(self, models: list[Model], ops: list[Any], compares_optimizers: bool) -> None:
        self._models, self._ops = models, ops
        self._compares_optimizers = compares_optimizers
        self._optimizers = self._current_optimizers()
        self._change: GuardChange | None = None
        self._is_compared = True
        self.renew()
        with _lock:
            _live.add(self)

    def renew(self) -> None:
        """Take a new snapshot; the optimizers stay those that were noted first."""
        self._snapshot = Snapshot(self._roots(), self._skipped())
        if self._snapshot.truncated is not None:
            warn(
                f"The ops lead to too much data to compare, at {self._snapshot.truncated}. Call "
                "network.retrace() after a change of data beyond that."
            )

    def forget_comparison(self) -> None:
        """Let `cached_change` compare again."""
        self._is_compared = False

    def cached_change(self) -> GuardChange | None:
        """Return the first change; it is compared once until `forget_comparison`."""
        if not self._is_compared:
            self._change = self.first_change()
            self._is_compared = True
        return self._change

    def first_change(self) -> GuardChange | None:
        """Compare, and return the first change, or None if nothing has changed."""
        for model, old, new in zip(
            self._models, self._optimizers, self._current_optimizers(), strict=True
        ):
            if new is not old:
                return GuardChange(f"the optimizer of model '{name_of(model)}'", is_number=False)
        path = self._snapshot.first_change()
        return None if path is None else GuardChange(path, self._snapshot.is_change_of_number())

    def shares_any(self, ops: Iterable[Any], models: Iterable[Model]) -> bool:
        """Return whether this guard compares any of these ops and models."""
        ids = {id(item) for item in (*with_inner_ops(ops), *models)}
        return any(id(item) in ids for item in (*with_inner_ops(self._ops), *self._models))

    def is_unchanged_but_for_optimizers(self) -> bool:
        """Return whether nothing has changed, except for which optimizers are the current ones."""
        return self._snapshot.first_change() is None

    def _current_optimizers(self) -> list[Any]:
        if not self._compares_optimizers:
            return [None] * len(self._models)
        return [get_metadata(model, "current_optimizer") for model in self._models]

    def _roots(self) -> Iterator[tuple[str, Any]]:
        """Yield the objects to compare, with the name that begins the path of a change."""
        for index, op in enumerate(self._ops):
            yield f"op {index} ({type(op).__name__})", op
        for model, optimizer in zip(self._models, self._optimizers, strict=True):
            owner = f"model '{name_of(model)}'"
            yield owner, model
            yield f"the optimizer of {owner}", optimizer
            for layer in all_layers(model)[1:]:
                yield f"layer '{layer.name}' of {owner}", layer
            # Snapshots compare variables by identity, as they do tensors.
            for variable in model.variables if model.built else ():
                yield f"variable '{variable.name}' of {owner}", vars(variable)

    def _skipped(self) -> Iterator[tuple[Any, str]]:
        for op in self._ops:
            for name in _PLAN_ATTRIBUTES:
                yield op, name
        for model in self._models:
            for name in NAMES:
                yield holder_of(model, name), name
        layers = [layer for model in self._models for layer in all_layers(model)]
        for owner in (*layers, *self._optimizers):
            for name in BOOKKEEPING:
                yield owner, name


@dataclass
class TraceHistory:
    """The latest traces of a network in all its program sets, for the reason of the next trace.

    Attributes:
        latest: The active items of the latest trace of each mode and warmup, and its guard.
        changes: How often each number has changed, by the mode, the warmup and the path.
    """

    latest: dict[Hashable, tuple[ActiveItems, TraceGuard]] = field(default_factory=dict)
    changes: Counter[tuple[Hashable, str]] = field(default_factory=Counter)


@contextmanager
def tracing(ops: list[Any], models: list[Model]) -> Iterator[None]:
    """Keep guards valid through the changes that tracing some ops makes, such as a counter.

    Such a change would otherwise cause each of two graphs of the same op to be traced again after
    the other one, without end. Guards that had found another change before stay invalid.
    """
    with _lock:
        live = list(_live)
    valid = [
        guard
        for guard in live
        if guard.shares_any(ops, models) and guard.is_unchanged_but_for_optimizers()
    ]
    try:
        yield
    finally:
        for guard in valid:
            guard.renew()
