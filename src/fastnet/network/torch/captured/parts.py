"""Steps in parts: ops in a row that are compiled, beside others that run one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any, NamedTuple, Protocol

import torch

from fastnet._execute import BoundPlan, Plan
from fastnet._nest import NestMap, leaves_of
from fastnet._resolve import OpSpec, gather, resolve
from fastnet.network.execution_plan import ExecutionPlan
from fastnet.network.torch.captured.observing import code_told
from fastnet.op.tensorop.tensorop import TensorOp
from fastnet.types import Forward, RunStep, State

__all__ = ["Gradients", "Parts", "Stretch", "stretches"]

FEWEST = 4
"""The ops without a model that are compiled by themselves: a call costs as much as these do."""

Autocast = Callable[[], torch.autocast]

_BACKWARD = frozenset(
    getattr(one, "__code__", None)
    for one in (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)
)


class Steps(Protocol):
    """The steps of a plan, compiled where that can be."""

    @property
    def run_op_by_op(self) -> bool:
        """Whether none of them is compiled, nor will be."""

    def step(
        self,
        step_of: Callable[[BoundPlan, Plan], RunStep],
        bound: BoundPlan,
        make: Callable[[], Any] | None,
    ) -> RunStep:
        """Return the function that runs the steps of a context."""


class Gradients:
    """What the ops of a step have to do with gradients.

    Attributes:
        giving: By the places of ops the keys that they read, or write, tensors under that need
            gradients.
        taking: The places of those whose own code takes gradients.
        waiting: The places of those after which an update is put off.
        codes: The code that has run.
    """

    def __init__(self) -> None:
        self.giving: dict[int, set[str]] = {}
        self.taking: set[int] = set()
        self.waiting: set[int] = set()
        self.codes: set[CodeType] = set()
        self._at = -1

    def watching(self) -> AbstractContextManager[None]:
        """Look on while a step is run; nobody else may."""
        return code_told(self._see)

    def wrap(self, op: Any, place: int, forward: Forward) -> Forward:
        """Look on at an op.

        Args:
            op: The op.
            place: Its place.
            forward: What the plan calls for it.

        Returns:
            What the plan is to call instead.
        """

        def run(data: Any, state: dict[str, Any]) -> Any:
            self._at = place
            result = forward(data, state)
            found = _keys_of_gradients(op.inputs, data) | _keys_of_gradients(op.outputs, result)
            if found:
                self.giving[place] = found
            if state.get("deferred"):
                self.waiting.add(place)
            return result

        return run

    def _see(self, code: CodeType) -> bool:
        self.codes.add(code)
        if code not in _BACKWARD:
            return True
        self.taking.add(self._at)
        return False  # another op may run it, too


class Stretch(NamedTuple):
    """Ops in a row that can be compiled by themselves.

    Attributes:
        places: Their places.
        takes: Whether one of them takes gradients.
        bound: The keys of theirs from which an op after them would take gradients, if there were
            any to take.
    """

    places: range
    takes: bool
    bound: frozenset[str]


def stretches(plan: ExecutionPlan, alone: int, gradients: Gradients) -> list[Stretch]:
    """Find the ops in a row that can be compiled by themselves.

    No op after such a row takes gradients through it, none of the row takes them through ops before
    it, and no update before its end waits for its end, or for ops after it.

    Args:
        plan: The ops.
        alone: The place of an op that cannot be compiled.
        gradients: What they have to do with gradients.

    Returns:
        The rows, in order.
    """
    specs = plan.specs
    taking = {place for place, spec in enumerate(specs) if spec.takes_gradients} | gradients.taking
    reads = [frozenset(spec.item.inputs) for spec in specs]

    def read_from(place: int) -> frozenset[str]:
        return frozenset().union(*reads[place:])

    def takes_from(place: int) -> bool:
        return any(one >= place for one in taking)

    def divides(place: int) -> bool:
        if place in (0, len(specs)):
            return True
        if any(one < place for one in gradients.waiting):
            return False
        giving = [keys for one, keys in gradients.giving.items() if one < place]
        return not takes_from(place) or not any(read_from(place) & keys for keys in giving)

    found = []
    first = 0
    alone_too = [place for place, spec in enumerate(specs) if place == alone or spec.deletes]
    for last in (*alone_too, len(specs)):
        begin, end = first, last
        while begin < end and not divides(begin):
            begin += 1
        while begin < end and not divides(end):
            end -= 1
        if end - begin >= FEWEST or any(spec.models for spec in specs[begin:end]):
            bound = read_from(end) if takes_from(end) else frozenset()
            takes = any(one in taking for one in range(begin, end))
            found.append(Stretch(range(begin, end), takes, bound))
        first = last + 1
    return found


class Compiled(TensorOp):
    """Ops in a row that are compiled, as one op.

    Args:
        plan: The ops.
        steps: Their steps.
        stretch: What they have to do with the ops around them.
        give_up: Called when gradients would have to go through them.

    Attributes:
        steps: Their steps.
    """

    def __init__(
        self, plan: ExecutionPlan, steps: Steps, stretch: Stretch, give_up: Callable[[], None]
    ) -> None:
        names = plan.kernel.resolution
        super().__init__(sorted(names.device_inputs.names()), sorted(names.returned.names()))
        self._layout = plan
        self._stretch = stretch
        self._give_up = give_up
        self._bound = [place for place, key in enumerate(self.outputs) if key in stretch.bound]
        self.steps = steps
        self._eager: RunStep | None = None
        self._run: RunStep | None = None
        self._autocast: str | None = None

    def open(self, state: State, autocast: Autocast | None) -> None:
        """Get ready for the steps of a context.

        Args:
            state: The context that ops are given.
            autocast: Makes what they run within, which is on when they are called; None for
                nothing.
        """
        bound = BoundPlan(self._layout.kernel, state, autocast)
        self._eager = bound.run
        self._run = self.steps.step(_run_of, bound, autocast)
        self._autocast = None if autocast is None else autocast().device

    def forward(self, data: list[Any], state: State) -> list[Any]:
        """Run the ops.

        Args:
            data: The values of the inputs.
            state: The context.

        Returns:
            The values of the outputs.
        """
        assert self._run is not None
        assert self._eager is not None
        run = self._run
        if _need_gradients(data):
            if self._stretch.takes:
                run = self._eager
                self._give_up()
            else:
                data = _DETACH(data)
        result = self._run_alone(run, dict(zip(self.inputs, data, strict=True)))
        values = [result[key] for key in self.outputs]
        # of a program they never do
        if _need_gradients(values):
            if not _need_gradients([values[place] for place in self._bound]):
                return _DETACH(values)
            self._give_up()
        return values

    def _run_alone(self, run: RunStep, batch: dict[str, Any]) -> dict[str, Any]:
        """Run the ops without autocast around them: a program has it in it, and ops make it."""
        if self._autocast is None:
            return run(batch)
        torch.set_autocast_enabled(self._autocast, False)
        try:
            return run(batch)
        finally:
            torch.set_autocast_enabled(self._autocast, True)


class Parts:
    """The steps of a plan in parts.

    Args:
        plan: All ops.
        found: The ops in a row that are compiled.
        steps: Given ops in a row, and their places, makes what runs their steps.
        give_up: Called when gradients would have to go through such ops; the step that is under way
            has them.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        found: list[Stretch],
        steps: Callable[[ExecutionPlan, range], Steps],
        give_up: Callable[[], None],
    ) -> None:
        names = plan.kernel.resolution
        wanted = {*names.outputs.names(), *names.returned.names()}
        self._ops = []
        for stretch in found:
            places = stretch.places
            later = {key for spec in plan.specs[places.stop :] for key in spec.item.inputs}
            part = _plan_part(plan, places, wanted | later)
            self._ops.append(Compiled(part, steps(part, places), stretch, give_up))
        self._places = [stretch.places for stretch in found]
        self._plan = _kernel_of_parts(plan, zip(self._places, self._ops, strict=True))

    def open(self, state: State, autocast: Autocast | None) -> BoundPlan:
        """Get ready for the steps of a context.

        Args:
            state: The context that ops are given.
            autocast: Makes what is entered around the ops of each step, or None.

        Returns:
            The plan of the parts with both.
        """
        for op in self._ops:
            op.open(state, autocast)
        return BoundPlan(self._plan, state, autocast)

    def at_places(self) -> dict[int, TensorOp]:
        """Return what is in the place of compiled ops, by the place of the first of these."""
        return {places.start: op for places, op in zip(self._places, self._ops, strict=True)}

    @property
    def run_op_by_op(self) -> bool:
        """Whether no part is compiled, nor will be."""
        return all(op.steps.run_op_by_op for op in self._ops)

    def lacks(self, batch: Mapping[str, Any]) -> bool:
        """Return whether a batch has not all that is read of it.

        Args:
            batch: The batch.
        """
        return self._plan.missing(batch) is not None


_DETACH = NestMap(torch.Tensor, torch.Tensor.detach, when="requires_grad")


def _keys_of_gradients(keys: Sequence[str], values: Any) -> set[str]:
    """Return the keys of an op whose values need gradients: all, where it has not one for each."""
    if len(keys) == 1 or not isinstance(values, (list, tuple)) or len(values) != len(keys):
        return set(keys) if _need_gradients([values]) else set()
    return {key for key, value in zip(keys, values, strict=True) if _need_gradients([value])}


def _need_gradients(values: list[Any]) -> bool:
    return any(isinstance(one, torch.Tensor) and one.requires_grad for one in leaves_of(values))


def _run_of(bound: BoundPlan, timed_as: Plan) -> RunStep:
    return bound.run


def _plan_part(plan: ExecutionPlan, indices: range, wanted: Iterable[str]) -> ExecutionPlan:
    """Lay out consecutive ops by themselves; `wanted` are the keys that are read after them."""
    specs = plan.specs[indices.start : indices.stop]
    ops, _, models, gradient_indices = gather(specs)
    forwards = plan.forwards[indices.start : indices.stop]
    resolved_with: Any = [], [], frozenset(wanted), plan.resolved_with[3]
    resolution = resolve(plan.table, specs, *resolved_with)
    kernel = Plan(plan.table, specs, forwards, resolution)
    kernel.op_indices = [plan.index_of(index) for index in indices]
    return ExecutionPlan(
        kernel=kernel,
        ops=ops,
        postprocessing=[],
        slicers=[],
        models=models,
        takes_gradients=bool(gradient_indices),
        unwritten=[],
        scheduled=plan.scheduled,
        selected=(specs, [], []),
        table=plan.table,
        forwards=forwards,
        resolved_with=resolved_with,
        handling=(),
    )


def _kernel_of_parts(plan: ExecutionPlan, parts: Iterable[tuple[range, Any]]) -> Plan:
    """Lay the ops out again, with one op in the place of each of some parts."""
    specs, forwards = list(plan.specs), list(plan.forwards)
    indices = [*range(len(specs))]
    for part, op in reversed(list(parts)):
        within = slice(part.start, part.stop)
        specs[within], forwards[within] = [OpSpec(op, plan.table)], [op.forward]
        indices[within] = [part.start]
    resolution = resolve(plan.table, specs, *plan.resolved_with)
    kernel = Plan(plan.table, specs, forwards, resolution, *plan.handling)
    kernel.find_inactive_writer = plan.kernel.find_inactive_writer
    kernel.op_indices = [plan.index_of(index) for index in indices]
    return kernel
