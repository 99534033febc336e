"""Which parts of a graph XLA can compile by themselves, where it cannot compile all of it at once.

Each node is at a level: how many times what only a graph can do, such as calling Python, must have
been before it. The nodes of one level that XLA can run are a program: they never wait for each
other by way of anything else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

import tensorflow as tf

from fastnet.network.tf.compiled.vocabulary import CALLS, RANDOM, READING

__all__ = ["Level", "divide"]

# what a graph takes no time for, or XLA no less
_IDLE = frozenset({"Identity", "ReadVariableOp", "Reshape"})
# calling a program takes as long as some twenty small operations of a graph
_LEAST = 24


class Level(NamedTuple):
    """The names of nodes, but for constants, inputs and what does nothing.

    Attributes:
        program: Those that XLA compiles.
        rest: Those that run as a graph, after the program.
    """

    program: frozenset[str]
    rest: frozenset[str]


def divide(
    operations: Sequence[tf.Operation], inputs: Collection[str], unfit: Collection[str]
) -> tuple[list[Level], dict[str, frozenset[str]]]:
    """Divide a graph.

    Args:
        operations: Its nodes, each after those that it waits for.
        inputs: The names of those that stand for what the graph is given.
        unfit: The names of those that XLA cannot run.

    Returns:
        The levels, in their order, and for each node those that it waits for besides those whose
        tensors it takes.
    """
    nodes = _Nodes(operations, inputs, unfit)
    nodes.write_in_turn()
    levels = nodes.early()
    needed = nodes.leading_to({name for name, level in levels.items() if level == 1})
    first = nodes.leading_to({one for one in needed - nodes.fit if levels[one] == 0}) & nodes.fit
    if nodes.work(first) < _LEAST:
        # what is worked out for these is no program, and all else may be one
        nodes.fit -= first
        levels = nodes.early()
    levels = nodes.late(levels)
    programs: dict[int, set[str]] = defaultdict(set)
    rest: dict[int, set[str]] = defaultdict(set)
    for name, level in levels.items():
        (programs if name in nodes.fit else rest)[level].add(name)
    for level, names in programs.items():
        if nodes.work(names) < _LEAST:
            rest[level] |= names
            names.clear()
    found = [
        Level(frozenset(programs[level]), frozenset(rest[level]))
        for level in sorted({*programs, *rest})
    ]
    return found, nodes.controls


class _Nodes:
    """The nodes of a graph that are at a level, and what they wait for."""

    def __init__(
        self,
        operations: Sequence[tf.Operation],
        inputs: Collection[str],
        unfit: Collection[str],
    ) -> None:
        self._inputs = inputs
        self._operations: dict[str, tf.Operation] = {}
        self.fit: set[str] = set()
        self.controls: dict[str, frozenset[str]] = {}
        self._before: dict[str, frozenset[str]] = {}
        # what a node that does nothing waits for
        through: dict[str, set[str]] = {}
        for operation in operations:
            name = operation.name
            if name in inputs or operation.type == "Const":
                continue
            controls = set[str]()
            for one in operation.control_inputs:
                controls |= through.get(one.name, {one.name} & self._before.keys())
            if operation.type == "NoOp":
                through[name] = controls
                continue
            self._operations[name] = operation
            self.controls[name] = frozenset(controls)
            taken = {one.op.name for one in operation.inputs} & self._before.keys()
            self._before[name] = frozenset(controls | taken)
            # a name for what a graph has worked out is no work for a program
            handed_on = operation.type == "Identity" and taken and taken.isdisjoint(self.fit)
            if name not in unfit and not handed_on and _is_of_numbers(operation, inputs):
                self.fit.add(name)

    def write_in_turn(self) -> None:
        """Have variables written to before or after what may fail, or look at them, as op by op.

        A step that fails leaves them as they were there, and Python finds them so.
        """
        written: set[str] = set()
        failing: set[str] = set()
        for name, before in self._before.items():
            operation = self._operations[name]
            writes, fails = _writes(operation), _may_fail(operation, name in self.fit)
            waits = (failing if writes else set()) | (written if fails else set())
            self._before[name] |= waits
            self.controls[name] |= waits
            # what has waited for some stands for them
            if writes:
                written = (written - before) | {name}
            if fails:
                failing = (failing - before) | {name}

    def leading_to(self, names: set[str]) -> set[str]:
        """Find the nodes that lead to others.

        Args:
            names: The others.
        """
        found = set(names)
        for name in reversed(self._before):
            if name in found:
                found |= self._before[name]
        return found

    def early(self) -> dict[str, int]:
        """Find the lowest level that each node can be at."""
        levels: dict[str, int] = {}
        for name, before in self._before.items():
            # what waits for no program is below the first
            least = 0 if name in self.fit else -1
            levels[name] = max([least, *(levels[one] + self._step(one, name) for one in before)])
        return levels

    def late(self, levels: dict[str, int]) -> dict[str, int]:
        """Have variables read, and what follows from them alone, at the level that needs it.

        What one program has only read for another one would have to be handed on.

        Args:
            levels: The lowest levels; they are changed.
        """
        after: dict[str, list[str]] = defaultdict(list)
        alone: set[str] = set()
        for name, before in self._before.items():
            for one in before:
                after[one].append(name)
            operation = self._operations[name]
            given = any(one.op.name in self._inputs for one in operation.inputs)
            reads = operation.type == "ReadVariableOp"
            if name in self.fit and (reads or (before <= alone and not given)):
                alone.add(name)
        for name in reversed(self._before):
            if name in alone and after[name]:
                ends = [levels[one] - self._step(name, one) for one in after[name]]
                levels[name] = max(levels[name], min(ends))
        return levels

    def work(self, names: Collection[str]) -> int:
        """Count the nodes that do some work."""
        return sum(self._operations[name].type not in _IDLE for name in names)

    def _step(self, one: str, other: str) -> int:
        """Return by how many levels the second node is at least above the first."""
        return int(other in self.fit and one not in self.fit)


def _writes(operation: tf.Operation) -> bool:
    handles = any(one.dtype == tf.resource for one in operation.inputs)
    return handles and operation.type not in READING


def _may_fail(operation: tf.Operation, fit: bool) -> bool:
    """Return whether an operation may raise an error, or is seen outside of variables."""
    kind: str = operation.type
    if fit:
        # a check stands for it
        return kind == "Assert"
    if not operation.op_def.is_stateful or kind in RANDOM | READING:
        return False
    return kind in CALLS or not _writes(operation)


def _is_of_numbers(operation: tf.Operation, inputs: Collection[str]) -> bool:
    """Return whether all that an operation takes and gives are tensors of numbers, or variables."""
    if any(one.dtype in (tf.resource, tf.variant, tf.string) for one in operation.outputs):
        return False
    return not any(
        (one.dtype in (tf.resource, tf.variant) and one.op.name not in inputs)
        or (one.dtype == tf.string and one.op.type != "Const")
        for one in operation.inputs
    )
