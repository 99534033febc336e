"""Programs, which are traced or compiled steps, and the sets that find one for a batch.

A program is valid for the batches of its signature, as long as its guard finds that nothing has
changed of what it was made from. A `ProgramSet` holds the programs of the same ops: it finds one
that is valid for a batch, or says why there is none, and limits how many are made. How a program is
made is the framework's.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from fastnet._trace import Signature
from fastnet.network.plan_cache import ExecutionPlan
from fastnet.network.program_limits import MAX_CHANGES_IN_A_ROW, MAX_COMPILATIONS
from fastnet.network.trace_records import Records
from fastnet.op.settings import last_resolved
from fastnet.types import State

ANOTHER_SIGNATURE = "a batch has another input signature"
ANOTHER_PHASE = (
    "gradients of another number of steps are merged, or buffers are broadcast in other steps"
)

# Records in a profile why a program was made, and the seconds of tracing and compiling it.
OnProgram = Callable[[str, float, float], None]


class Program(ABC):
    """A traced or compiled step.

    Args:
        signature: The forms of the values that it reads from a batch, and of its outputs.

    Attributes:
        signature: The signature.
        match: Returns the tensors of a batch as a list, or None if the program is not for it.
        unverified: Why its first step is not compared with an uncompiled one although it is
            compiled; None otherwise.
        has_dynamic_axes: Whether axes are dynamic; `find` tries programs with static axes first.
            Only TensorFlow sets it.
        is_compiled: Whether it is compiled, or is to be, and not only traced.
    """

    is_compiled = True

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.match: Callable[[Mapping[str, Any]], list[Any] | None] = signature.match
        self.unverified: str | None = None
        self.has_dynamic_axes = False

    def matches_phase(self) -> bool:
        """Return whether the program is for the current phase.

        There are several in PyTorch if gradients are merged, or if DistributedDataParallel
        broadcasts buffers in some steps only.
        """
        return True

    @abstractmethod
    def difference(self) -> str | None:
        """Return what has changed since the program was made, or None if it is still valid.

        Changes that the program can adopt, such as of a learning rate, it adopts.
        """

    @abstractmethod
    def run(self, batch: Mapping[str, Any], inputs: list[Any]) -> dict[str, Any]:
        """Run a step, and return a new dict of the batch updated with the outputs.

        Args:
            batch: The batch.
            inputs: The tensors that `match` has returned for it; in TensorFlow after the epoch.
        """


P = TypeVar("P", bound=Program)


class ProgramSet(Generic[P]):
    """The programs of the same ops.

    Args:
        max_programs: How many compiled programs there may be at once.
        records: The records of the network: of programs, and of reasons why steps run uncompiled.

    Attributes:
        programs: The programs, the last used first, and those with dynamic axes last.
        fallback_reason: Why no further program is compiled, or None; `stop_compiling` sets it. In
            TensorFlow, further steps are still traced.
        max_programs: See above.
        count: How many programs were made, including those that are no longer in use.
    """

    def __init__(self, max_programs: int, records: Records) -> None:
        self.programs: tuple[P, ...] = ()
        self.fallback_reason: str | None = None
        self.records = records
        self.max_programs = max_programs
        self.count = 0
        self._compilations = 0
        self._changes_in_a_row = 0
        # Held while `programs` is replaced, so that no thread brings a discarded program back.
        self._lock = threading.Lock()

    def find(self, batch: Mapping[str, Any]) -> tuple[P | None, list[Any], str | None]:
        """Find the program for the next step, and move it to the front.

        Returns:
            The program, the tensors of the batch, and None; or None, an empty list, and the reason
            why no program is valid, which is None if there are no programs. A change takes
            precedence over another signature, and that over another phase. Only PyTorch uses the
            reason; `GraphProgramSet.trace` finds one that names the key.

        Raises:
            KeyError: If the batch lacks a key.
        """
        change = other_signature = None
        programs = self.programs
        for index, program in enumerate(programs):
            if not program.matches_phase():
                continue
            # It takes less time to compare a batch than what the program was made from.
            tensors = program.match(batch)
            if tensors is None:
                other_signature = ANOTHER_SIGNATURE
                continue
            difference = program.difference()
            if difference is None:
                self._changes_in_a_row = 0
                if index and programs[index - 1].has_dynamic_axes is program.has_dynamic_axes:
                    self._move_to_front(program)
                return program, tensors, None
            change = change or difference
        other_phase = ANOTHER_PHASE if programs else None
        return None, [], change or other_signature or other_phase

    def add(self, program: P, is_change: bool = False) -> None:
        """Add a program that was just made; see `make_room_or_refuse`."""
        with self._lock:
            self._put_first(program, self.programs)
            self.count += 1
            self._compilations += program.is_compiled
            self._changes_in_a_row += is_change

    def discard(self, program: P) -> None:
        """Remove a program."""
        with self._lock:
            self.programs = tuple(other for other in self.programs if other is not program)

    def clear(self) -> None:
        """Remove all programs."""
        with self._lock:
            self.programs = ()

    def stop_compiling(self, reason: str | None) -> None:
        """Compile no further programs if `reason` is not None; the first reason stays."""
        if self.fallback_reason is None:
            self.fallback_reason = reason

    def make_room_or_refuse(self, reason: str, is_change: bool, phases: int = 1) -> str | None:
        """Return why another program must not be compiled, or None if it may be.

        It makes room by discarding a program that is not valid any more, or all, if something
        changes in each step.

        Args:
            reason: Why the program is needed.
            is_change: Whether that is a change of what the programs were made from, and not another
                kind of batch.
            phases: The number of phases of steps, in each of which a signature needs a program.
        """
        if self._changes_in_a_row + is_change > MAX_CHANGES_IN_A_ROW:
            self.clear()
            return f"something changes in each step: {reason}"

        capacity = self.max_programs * phases
        if self._compiled_now() >= capacity:
            self._discard_unusable()
        if self._compilations >= MAX_COMPILATIONS:
            return (
                f"{MAX_COMPILATIONS} programs have been compiled for these ops, most recently "
                f"because {reason}"
            )
        if self._compiled_now() >= capacity:
            return (
                f"there are more than {self.max_programs} input signatures, most recently "
                f"because {reason}"
            )
        return None

    def _compiled_now(self) -> int:
        """Return how many programs there are that are compiled, or are to be."""
        return sum(program.is_compiled for program in self.programs)

    def _move_to_front(self, program: P) -> None:
        """Move a program to the front, unless another thread has discarded it meanwhile."""
        with self._lock:
            if program in self.programs:
                others = [other for other in self.programs if other is not program]
                self._put_first(program, others)

    def _put_first(self, program: P, others: Iterable[P]) -> None:
        programs = (program, *others)
        self.programs = tuple(sorted(programs, key=attrgetter("has_dynamic_axes")))

    def _discard_unusable(self) -> None:
        """Remove the least recently used compiled program of this phase that is invalid, if any."""
        for program in reversed(self.programs):
            if program.is_compiled and program.matches_phase() and program.difference() is not None:
                self.discard(program)
                return


S = TypeVar("S", bound="ProgramSet[Any]")


class ProgramSets(Generic[S]):
    """The program sets of a network: plans of the same ops share one, which dies with them."""

    def __init__(self) -> None:
        self._sets: WeakValueDictionary[Hashable, S] = WeakValueDictionary()

    def find(self, plan: ExecutionPlan, key: Hashable, make: Callable[[], S]) -> S:
        """Return the set of a plan, or make it. Plans of the same key share it."""
        programs: S | None = plan.program_sets.get(key) or self._sets.get(key)
        if programs is None:
            programs = self._sets[key] = make()
        plan.program_sets[key] = programs
        return programs

    def clear(self) -> None:
        """Let no other plan share the present sets."""
        self._sets.clear()


def key_of_ops(plan: ExecutionPlan, state: State) -> Hashable:
    """Return the key of what a program of a plan computes, given the state of a session."""
    resolution = plan.kernel.resolution
    return (
        state["mode"],
        bool(state["warmup"]),
        # An op whose keys or models have changed has another spec.
        tuple(map(id, plan.selected[0])),
        # `forward` may be assigned, as may the class of an op.
        tuple(id(getattr(op.forward, "__func__", op.forward)) for op in plan.ops),
        # Settings are part of the forwards that a program was traced from.
        tuple(map(last_resolved, plan.ops)),
        frozenset(resolution.device_inputs.names()),
        frozenset(resolution.returned.names()),
    )
