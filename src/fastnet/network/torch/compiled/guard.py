"""The guard of a compiled step: whether anything that it was traced from has changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fastnet._guards import Kind
from fastnet.backend.model_metadata import NAMES, every_optimizer_of, holder_of, name_of
from fastnet.backend.torch._internals import global_module_hook_tables, global_step_hook_tables
from fastnet.backend.torch.wrappers import without_compile
from fastnet.guards import Snapshot
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.torch.compiled.buffer_broadcasts import FLAG
from fastnet.network.torch.compiled.number_inputs import OpNumber
from fastnet.network.torch.compiled.uncapturable import Uncapturable
from fastnet.op.op import Op, with_inner_ops
from fastnet.op.tensorop.model.lr_schedule import LRSchedule

# A change of these builds another plan, and thereby another program.
_PLAN_SETTINGS = ("inputs", "outputs", "mode", "ds_id")
# `TorchProgram` compares the first three by `OptimizerState`, to adopt some changes; schedulers and
# optimizers write `_opt_called` in each step.
_OPTIMIZER_ATTRIBUTES = ("state", "param_groups", "scaler", "_opt_called")


class Guard(Snapshot):
    """A snapshot of the ops of a plan and their models, without the optimizers."""

    def __init__(self, plan: ExecutionPlan, numbers: Sequence[OpNumber]) -> None:
        models = [(f"the model '{name_of(model)}'", model) for model in plan.models]
        ops = [(plan.describe(index), op) for index, op in enumerate(plan.ops)]
        states = [
            (plan.describe(index), state)
            for index, op in enumerate(plan.ops)
            for inner in with_inner_ops([op])
            if isinstance(inner, Op) and (state := inner.compared_state())
        ]
        hooks = [
            ("the hooks of all modules", global_module_hook_tables()),
            ("the hooks of all optimizers", global_step_hook_tables()),
        ]
        skip = [*_skipped(plan), *((number.owner, number.name) for number in numbers)]
        super().__init__([*models, *ops, *states, *hooks], skip)
        if self.truncated is not None:
            raise Uncapturable(f"{self.truncated} leads to too much data to compare in each step")

    def changed_number(self) -> OpNumber | None:
        """Return the number that is the first change; None if that is of anything else."""
        index, values, position = self._first_difference()
        number_type = type(values[position]) if position >= 0 else None
        if number_type not in (int, float):
            return None
        kind, owner, _, _, _ = self.node(index)
        table: dict[Any, Any] | None = None
        # Dicts and attributes have a key or a name before each value.
        name = values[position - 1]
        if kind == Kind.GLOBAL:
            table, name = owner, values[0]
        elif kind == Kind.DICT and position % 2 and type(name) is str:
            table = owner
        elif kind == Kind.OBJECT and not is_library_class(type(owner)):
            # Ops of fastnet keep what they compute from their numbers, which remain constants.
            table = values[1]
        return OpNumber(self.first_change() or "", owner, table, name, number_type)

    def tensors(self) -> dict[int, torch.Tensor]:
        """Return the tensors in the snapshot, by their ids."""
        # `isinstance` would take a weak proxy of a tensor for one.
        return {
            id(value): value for value in self.values() if issubclass(type(value), torch.Tensor)
        }


def _skipped(plan: ExecutionPlan) -> Iterator[tuple[Any, str]]:
    """Yield the attributes that are not compared, each with its owner before its name."""
    for op in with_inner_ops(plan.ops):
        yield from ((op, name) for name in _PLAN_SETTINGS)
        is_library = is_library_class(type(op))
        for name, value in vars(op).items():
            # Such state of fastnet itself follows from the op's settings.
            if name.startswith("_") and (is_library or _is_internal_class(type(value))):
                yield op, name
        if isinstance(op, LRSchedule):
            yield op, "schedulers"
    for model in plan.models:
        yield without_compile(model), FLAG
        for name in NAMES:
            yield holder_of(model, name), name
        for optimizer in every_optimizer_of(model):
            for name in _OPTIMIZER_ATTRIBUTES:
                yield optimizer, name


def _is_internal_class(cls: type) -> bool:
    """Return whether a class is fastnet's, and users hold no instances in their own attributes."""
    return cls.__module__.startswith("fastnet.backend.")


def is_library_class(cls: type) -> bool:
    """Return whether a class is fastnet's."""
    return cls.__module__.partition(".")[0] == "fastnet"
