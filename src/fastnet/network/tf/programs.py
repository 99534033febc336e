"""The graphs of one network: found again by what they are made of, and when each was traced."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from fastnet.network.compile_options import CompileOptions
from fastnet.network.context import NetworkContext
from fastnet.network.tf.open_axes import OpenAxes
from fastnet.network.tf.program import InForce, Program
from fastnet.network.tf.replica_program import ReplicaProgram
from fastnet.network.tf.replicas import Replicas
from fastnet.network.trace_records import Records
from fastnet.types import State

__all__ = ["Programs"]


class Programs:
    """The graphs of one network.

    Args:
        options: How steps are compiled; None where they are not.

    Attributes:
        records: What is told of the traces.
        told: Called with the reason of each trace, and the seconds that it took, and compiling,
            while a step is measured.
    """

    def __init__(self, options: CompileOptions | None = None) -> None:
        self.records = Records("as a graph")
        self.told: Callable[[str, float, float], None] | None = None
        self._options = options
        # of the opening that is under way, which is one at a time
        self._state: State = {}
        self._found: WeakValueDictionary[Any, Program] = WeakValueDictionary()
        self._latest: dict[Hashable, InForce] = {}

    @property
    def compiles(self) -> bool:
        """Whether steps are to be compiled."""
        return self._options is not None

    def find(
        self, context: NetworkContext, replicas: Replicas | None, open_axes: OpenAxes
    ) -> Program:
        """Find the graphs of a context: plans of the same ops share them.

        Args:
            context: The context.
            replicas: What its steps are spread over, or None.
            open_axes: The axes that a graph may leave open.

        Returns:
            The graphs, of which there may be none yet.
        """
        plan, state = context.plan, context.state
        self._state = state
        returned = plan.kernel.resolution.returned
        key = (
            state["mode"],
            state["warmup"],
            tuple(map(id, plan.ops)),
            # an op may be given another one, or another class
            tuple(id(getattr(op.forward, "__func__", op.forward)) for op in plan.ops),
            frozenset(returned.names()),
            # another one where what the ops say of themselves was read anew
            id(returned.table),
            None if replicas is None else (id(replicas.strategy), bool(plan.slicers)),
        )
        program = plan.programs.get(key) or self._found.get(key)
        if program is not None:
            program.rebind(plan)
        else:
            record = partial(self._record, str(state["mode"]))
            shared = record, self._latest, open_axes, self._options
            state = {**state, "eager": False}
            if replicas is None:
                program = Program(plan, state, *shared)
            else:
                joins = not plan.slicers
                program = ReplicaProgram(plan, state, replicas, *shared, joins=joins)
            self._found[key] = program
        plan.programs[key] = program
        return program

    def _record(
        self,
        mode: str,
        reason: str,
        seconds: float,
        compiling: float,
        fallback: str | None,
        part: str | None,
    ) -> None:
        context = {"mode": mode, "epoch": self._state["epoch"]}
        records = self.records if part is None else self.records.of(part)
        records.add(context, reason, seconds, compiling, fallback)
        if self.told is not None:
            self.told(reason, seconds, compiling)
