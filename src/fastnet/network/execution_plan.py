"""The execution plan of a network for one mode, epoch and dataset."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fastnet._execute import Plan
from fastnet._nest import NestMap
from fastnet._resolve import KeyTable, OpSpec, SlicerSpec
from fastnet.errors import describe_op
from fastnet.types import Forward, Model

__all__ = ["ExecutionPlan", "Handling", "Setting", "Specs"]

Setting = tuple[Callable[[], Any], Callable[[Any], Any], Any]
Adopt = tuple[type, NestMap, NestMap]
Specs = tuple[list[Any], list[Any], list[Any]]


def _no_setting(gradients: bool) -> Setting | None:
    return None


class Handling(NamedTuple):
    """Framework-specific processing of the values of a step, and settings for its ops.

    Attributes:
        adopt: Converts foreign tensors and arrays on their way in, or None.
        move: Applied to values on their way in, after that, or None.
        release: Applied to values on their way out, or None.
        wait: Waits for the copies that `release` has queued, or None where it queues none.
        setting: Given whether an op takes gradients, what must be set while ops run, or None.
    """

    adopt: Adopt | None = None
    move: NestMap | None = None
    release: NestMap | None = None
    wait: Callable[[], None] | None = None
    setting: Callable[[bool], Setting | None] = _no_setting


@dataclass(eq=False, slots=True)
class ExecutionPlan:
    """The active items of a network in one mode, epoch and dataset, and what follows from them.

    Attributes:
        kernel: The kernel's plan of the ops.
        ops: The active ops, in order.
        postprocessing: The active postprocessing ops, in order.
        slicers: The active slicers.
        models: The models that the ops hold.
        takes_gradients: Whether any of the ops takes gradients.
        scheduled: What each scheduler stands for, kept alive since plans are found by it.
        selected: The specs of the ops, postprocessing ops and slicers.
        table: The table of the keys.
        forwards: What the kernel calls for each op.
        resolved_with: The arguments of `resolve` besides the table and the specs of the ops.
        handling: The arguments of `Plan` that process values and settings.
        on_exit: Called when a network that runs this plan is left without an error.
        programs: What a framework has traced or compiled of this plan.
    """

    kernel: Plan
    ops: list[Any]
    postprocessing: list[Any]
    slicers: list[Any]
    models: list[Model]
    takes_gradients: bool
    scheduled: tuple[Any, ...]
    selected: Specs
    table: KeyTable
    forwards: list[Forward]
    resolved_with: tuple[list[OpSpec], list[SlicerSpec], frozenset[str], str]
    handling: tuple[Any, ...]
    on_exit: list[Callable[[], None]] = field(default_factory=list)
    programs: dict[Hashable, Any] = field(default_factory=dict)

    @property
    def specs(self) -> list[OpSpec]:
        """The specs of the ops."""
        return self.selected[0]

    def describe(self, index: int) -> str:
        """Describe an op the way every error does."""
        return describe_op(self.ops[index], index)

    def kernel_with(self, wrap: Callable[[Any, int, Forward], Forward]) -> Plan:
        """Build a kernel plan with `wrap(op, index, forward)` as each forward, and no handling."""
        wrapped = [
            wrap(op, index, forward)
            for index, (op, forward) in enumerate(zip(self.ops, self.forwards, strict=True))
        ]
        kernel = Plan(self.table, self.specs, wrapped, self.kernel.resolution)
        kernel.find_inactive_writer = self.kernel.find_inactive_writer
        return kernel
