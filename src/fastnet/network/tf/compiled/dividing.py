"""Which parts of a graph XLA can compile by themselves, where it cannot compile all of it at once.

Each node is at a level: how many times what only a graph can do, such as calling Python, or what
another device does, must have been before it. The nodes of one level and device that XLA can run
are a program: they never wait for each other by way of anything else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

import tensorflow as tf

from fastnet.network.tf.compiled.reading import Reading, Uncompilable
from fastnet.network.tf.compiled.vocabulary import CALLS, COLLECTIVE, RANDOM, READING

__all__ = ["Level", "divide"]

# what a graph takes no time for, or XLA no less
_IDLE = frozenset({"Identity", "ReadVariableOp", "Reshape"})
# calling a program takes as long as some twenty small operations of a graph
_LEAST = 24


class Level(NamedTuple):
    """The names of nodes, but for constants, inputs and what does nothing.

    Attributes:
        programs: Those that XLA compiles, for each device that has some.
        rest: Those that run as a graph, after the programs.
    """

    programs: dict[str, frozenset[str]]
    rest: frozenset[str]


def divide(
    operations: Sequence[tf.Operation],
    inputs: Collection[str],
    reading: Reading,
    least_per_tensor: int = 0,
) -> tuple[list[Level], dict[str, frozenset[str]]]:
    """Divide a graph.

    Args:
        operations: Its nodes, each after those that it waits for.
        inputs: The names of those that stand for what the graph is given.
        reading: What the graph is made of.
        least_per_tensor: How many nodes a program has at least for each tensor that it takes or
            hands on.

    Returns:
        The levels, in their order, and for each node those that it waits for besides those whose
        tensors it takes.

    Raises:
        Uncompilable: If devices do not meet in the same order.
    """
    nodes = _Nodes(operations, inputs, reading)
    nodes.write_in_turn()
    levels = nodes.early()
    first = nodes.leading_out(levels)
    small = [names for names in first.values() if nodes.work(names) < _LEAST]
    if small:
        # what is worked out for these is no program, and all else may be one
        nodes.fit -= set().union(*small)
        levels = nodes.early()
    levels = nodes.late(levels)
    programs: dict[int, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    rest: dict[int, set[str]] = defaultdict(set)
    for name, level in levels.items():
        own = programs[level][nodes.devices[name]] if name in nodes.fit else rest[level]
        own.add(name)
    found = []
    for level in sorted({*programs, *rest}):
        kept = {}
        for device, names in programs[level].items():
            if nodes.work(names) < max(_LEAST, least_per_tensor * nodes.handed(names)):
                rest[level] |= names
            else:
                kept[device] = frozenset(names)
        found.append(Level(kept, frozenset(rest[level])))
    return found, nodes.controls


class _Nodes:
    """The nodes of a graph that are at a level, and what they wait for."""

    def __init__(
        self,
        operations: Sequence[tf.Operation],
        inputs: Collection[str],
        reading: Reading,
    ) -> None:
        self._inputs = inputs
        self._operations: dict[str, tf.Operation] = {}
        self.devices: dict[str, str] = {}
        # where devices meet: how many times each of them has met others before
        self._meetings: dict[str, list[int]] = {}
        met: dict[str, int] = defaultdict(int)
        self.fit: set[str] = set()
        self.controls: dict[str, frozenset[str]] = {}
        self._before: dict[str, frozenset[str]] = {}
        # what a node that does nothing waits for
        through: dict[str, set[str]] = {}
        for operation in operations:
            name = operation.name
            if name in inputs:
                continue
            controls = set[str]()
            for one in (*operation.control_inputs, *(one.op for one in operation.inputs)):
                controls |= through.get(one.name, set())
            controls |= {one.name for one in operation.control_inputs} & self._before.keys()
            if operation.type in ("NoOp", "Const"):
                through[name] = controls
                continue
            self._operations[name] = operation
            self.devices[name] = reading.devices.get(name, "")
            for device in reading.meetings.get(name, ()):
                self._meetings.setdefault(name, []).append(met[device])
                met[device] += 1
            self.controls[name] = frozenset(controls)
            taken = {one.op.name for one in operation.inputs} & self._before.keys()
            self._before[name] = frozenset(controls | taken)
            # a name for what a graph has worked out is no work for a program
            handed_on = operation.type == "Identity" and taken and taken.isdisjoint(self.fit)
            if name not in reading.unfit and not handed_on and _is_of_numbers(operation, inputs):
                self.fit.add(name)

    def write_in_turn(self) -> None:
        """Have variables written to before or after what may fail, or look at them, as op by op.

        A step that fails leaves them as they were there, and Python finds them so. (That devices
        wait for each other besides where they meet is not to be: they might do so for ever.)
        """
        written: dict[str, set[str]] = defaultdict(set)
        failing: dict[str, set[str]] = defaultdict(set)
        for name, before in self._before.items():
            operation, device = self._operations[name], self.devices[name]
            writes, fails = _writes(operation), _may_fail(operation, name in self.fit)
            waits = set[str]()
            if writes:
                waits |= failing[device]
            if fails:
                waits |= written[device]
            self._before[name] |= waits
            self.controls[name] |= waits
            # what has waited for some stands for them
            if writes:
                written[device] = (written[device] - before) | {name}
            if fails:
                failing[device] = (failing[device] - before) | {name}

    def leading_out(self, levels: dict[str, int]) -> dict[str, set[str]]:
        """Find what XLA can run of what leads out of level 0 to level 1, for each device.

        Args:
            levels: The levels.
        """
        needed = self._leading_to({name for name, level in levels.items() if level == 1})
        last = {
            one
            for name in needed
            for one in self._before[name]
            if levels[one] == 0 and self._step(one, name)
        }
        found: dict[str, set[str]] = defaultdict(set)
        for name in self._leading_to(last) & self.fit:
            found[self.devices[name]].add(name)
        return found

    def _leading_to(self, names: set[str]) -> set[str]:
        found = set(names)
        for name in reversed(self._before):
            if name in found:
                found |= self._before[name]
        return found

    def early(self) -> dict[str, int]:
        """Find the lowest level that each node can be at.

        Where devices meet each waits for what the others have to do before it, so that it is at one
        level for all of them: a program waits for nothing that another one of its level leads to.
        """
        levels: dict[str, int] = {}
        meetings = {one: -1 for own in self._meetings.values() for one in own}
        # each time round one more of them is where it stays
        for _ in range(len(meetings) + 1):
            before_this = dict(meetings)
            for name, before in self._before.items():
                # what waits for no program is below the first
                least = 0 if name in self.fit else -1
                own = self._meetings.get(name, ())
                level = max([least, *(levels[one] + self._step(one, name) for one in before)])
                level = max([level, *(meetings[one] for one in own)])
                meetings.update(dict.fromkeys(own, level))
                levels[name] = level
            if meetings == before_this:
                return levels
        raise Uncompilable("the devices do not meet in the same order")

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

    def handed(self, names: Collection[str]) -> int:
        """Count the tensors that nodes take from others, or hand on to them."""
        taken, handed = set[str](), set[str]()
        for name in names:
            operation = self._operations[name]
            taken.update(
                one.name
                for one in operation.inputs
                if one.op.name not in names and one.op.type != "Const"
            )
            handed.update(
                one.name
                for one in operation.outputs
                if any(user.name not in names for user in one.consumers())
            )
        return len(taken) + len(handed)

    def _step(self, one: str, other: str) -> int:
        """Return by how many levels the second node is at least above the first."""
        own = one in self.fit and self.devices[one] == self.devices[other]
        return int(other in self.fit and not own)


def _writes(operation: tf.Operation) -> bool:
    handles = any(one.dtype == tf.resource for one in operation.inputs)
    return handles and operation.type not in READING


def _may_fail(operation: tf.Operation, fit: bool) -> bool:
    """Return whether an operation may raise an error, or is seen outside of variables."""
    kind: str = operation.type
    if fit:
        # a check stands for it
        return kind == "Assert"
    if not operation.op_def.is_stateful or kind in RANDOM | READING or kind.startswith(COLLECTIVE):
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
