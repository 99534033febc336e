"""Steps whose last ops cannot be captured: they run eagerly after the program of the first ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from fastnet._execute import BoundPlan, Plan
from fastnet._resolve import OpSpec, gather, resolve
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.updates import updates_in
from fastnet.op.tensorop.tensorop import TensorOp
from fastnet.types import RunStep, State

__all__ = ["CompiledOps", "can_split", "split_kernel"]


class Steps(Protocol):
    """Runs the steps of a plan, compiled where that is possible."""

    def step(self, step_of: Callable[[BoundPlan], RunStep], bound: BoundPlan, make: Any) -> RunStep:
        """Return the function that runs the steps of a context."""


def can_split(plan: ExecutionPlan, index: int) -> bool:
    """Return whether the ops from `index` on can run after a program of the ops before them.

    They come after all updates, and neither hold models nor take gradients.
    """
    last = plan.specs[index:]
    return (
        plan.takes_gradients
        and not any(spec.takes_gradients or spec.models or spec.deletes for spec in last)
        and not any(update.defer for update in updates_in(plan.ops))
    )


class CompiledOps(TensorOp):
    """The first ops of a plan, which are compiled, as one op.

    Args:
        plan: The plan of all ops.
        count: The number of ops that are compiled.
        make_steps: Creates what runs the steps of the plan of these ops.
    """

    def __init__(
        self, plan: ExecutionPlan, count: int, make_steps: Callable[[ExecutionPlan], Steps]
    ) -> None:
        specs, forwards = plan.specs[:count], plan.forwards[:count]
        read_later = {key for spec in plan.specs[count:] for key in spec.item.inputs}
        names = plan.kernel.resolution
        wanted = frozenset(names.outputs.names() | names.returned.names() | read_later)
        resolved_with: Any = [], [], wanted, plan.resolved_with[3]
        kernel = Plan(plan.table, specs, forwards, resolve(plan.table, specs, *resolved_with))
        ops, _, models, _ = gather(specs)
        self._plan = replace(
            plan,
            kernel=kernel,
            ops=ops,
            models=models,
            selected=(specs, [], []),
            forwards=forwards,
            resolved_with=resolved_with,
            handling=(),
        )
        keys = kernel.resolution
        super().__init__(sorted(keys.device_inputs.names()), sorted(keys.returned.names()))
        self._steps = make_steps(self._plan)

    def open(self, state: State) -> None:
        """Prepare the steps of a context."""
        bound = BoundPlan(self._plan.kernel, state)
        self._run = self._steps.step(lambda bound: bound.run, bound, None)

    def forward(self, data: list[Any], state: State) -> list[Any]:
        """Run the ops."""
        result = self._run(dict(zip(self.inputs, data, strict=True)))
        return [result[key] for key in self.outputs]


def split_kernel(plan: ExecutionPlan, first: CompiledOps, count: int) -> Plan:
    """Return a kernel plan with `first` in place of the first `count` ops."""
    specs = [OpSpec(first, plan.table), *plan.specs[count:]]
    forwards = [first.forward, *plan.forwards[count:]]
    resolution = resolve(plan.table, specs, *plan.resolved_with)
    kernel = Plan(plan.table, specs, forwards, resolution, *plan.handling)
    kernel.find_inactive_writer = plan.kernel.find_inactive_writer
    kernel.op_indices = [0, *range(count, len(plan.ops))]
    return kernel
