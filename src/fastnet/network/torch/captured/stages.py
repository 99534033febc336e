"""The stages of a step on a device: what the CPU works out before it, the device's part, the rest.

Optimizers count their steps on the CPU, and their numbers are there. What comes of these for a
device are a few numbers: the first stage works them out, and they are brought to the device in one
tensor. So the device's part neither waits for the CPU nor has values of a single step in it, and
can be recorded as a graph of CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import fx

from fastnet.network.torch.captured.observing import Uncapturable

__all__ = ["Stage", "Stages", "runner_of", "split"]

_BEFORE, _ON_DEVICE, _AFTER = range(3)
_CPU = torch.device("cpu")

Call = Callable[[list[Any]], Sequence[Any]]


class Stage(NamedTuple):
    """A part of a step.

    Attributes:
        graph: What it does; it returns a tuple.
        takes: The place of each of its inputs among all values: the inputs of the step, and then
            what each stage returns.
        is_on_device: Whether it is the device's part.
        is_last: Whether it waits for the device.
    """

    graph: fx.GraphModule
    takes: list[int]
    is_on_device: bool
    is_last: bool

    def examples(self) -> list[Any]:
        """List what it takes, without values."""
        return [node.meta["val"] for node in self.graph.graph.nodes if node.op == "placeholder"]


class Stages(NamedTuple):
    """The stages of a step, in order.

    Attributes:
        stages: The stages.
        gives: The places of what the step returns, among all values.
        device: The device.
    """

    stages: list[Stage]
    gives: list[int]
    device: torch.device


def split(graph: fx.GraphModule, mode: Any) -> Stages | None:
    """Split what was traced by where it computes.

    Args:
        graph: It. Writes to inputs come last in it.
        mode: The mode that its example inputs are of.

    Returns:
        The stages; None if all of it is on the CPU.

    Raises:
        Uncapturable: If the device needs what the CPU makes of what comes from the device.
    """
    devices = {one for node in graph.graph.nodes for one in _devices(graph, node)} - {_CPU}
    if not devices:
        return None
    if len(devices) > 1:
        raise Uncapturable(f"the ops compute on {' and on '.join(sorted(map(str, devices)))}")
    return _Splitting(graph, mode, devices.pop()).run()


def runner_of(stages: Stages, calls: Sequence[Call]) -> Call:
    """Return the function that runs stages one after the other.

    Args:
        stages: The stages.
        calls: What runs each.
    """
    steps = [(call, stage.takes) for call, stage in zip(calls, stages.stages, strict=True)]
    gives = stages.gives

    def run(inputs: list[Any]) -> list[Any]:
        values = inputs.copy()
        for call, takes in steps:
            values += call([values[at] for at in takes])
        return [values[at] for at in gives]

    return run


class _Splitting:
    """Splits one graph.

    Args:
        graph: The graph.
        mode: The mode that its example inputs are of.
        device: The device, besides the CPU.
    """

    def __init__(self, graph: fx.GraphModule, mode: Any, device: torch.device) -> None:
        self._root = graph
        self._mode = mode
        self._device = device
        *self._nodes, output = graph.graph.nodes
        self._results: list[Any] = list(output.args[0])
        if not all(isinstance(one, fx.Node) for one in self._results):
            raise Uncapturable("the ops write what is no tensor")
        self._inputs = [node for node in self._nodes if node.op == "placeholder"]
        # of each node the stage in which its values are there; None for a number in any of them
        self._stage: dict[fx.Node, int | None] = {}
        # where values are among all of them
        self._places = {node: place for place, node in enumerate(self._inputs)}
        # where copies of them are that another stage takes, and in which row there
        self._copies: dict[fx.Node, tuple[int, int | None]] = {}
        self._count = len(self._inputs)

    def run(self) -> Stages:
        for node in self._nodes:
            self._stage[node] = self._stage_of(node)
        if any(self._is_of(node, _AFTER) for node in self._nodes):
            # what is read there must not have been written to before
            for node in self._nodes:
                if self._is_of(node, _BEFORE) and _is_write(node):
                    self._stage[node] = _AFTER
        needed = [self._needed(which) for which in range(3)]
        given = [node for node in (*needed[_AFTER], *self._results) if node not in self._places]
        stages = []
        for which in range(3):
            gives = [node for node in given if self._stage[node] == which]
            copied: list[fx.Node] = []
            if which < _AFTER:
                copied = [node for node in needed[which + 1] if self._stage[node] == which]
            if which == _ON_DEVICE:
                gives = [node for node in gives if node in self._results]
            if gives or copied or any(self._is_of(node, which) for node in self._nodes):
                stages.append(self._build(which, needed[which], gives, copied))
        return Stages(stages, [self._places[node] for node in self._results], self._device)

    def _is_of(self, node: fx.Node, which: int) -> bool:
        return node.op != "placeholder" and self._stage[node] == which

    def _stage_of(self, node: fx.Node) -> int | None:
        devices = _devices(self._root, node)
        known = [one for one in map(self._stage.get, node.all_input_nodes) if one is not None]
        latest = max(known, default=_BEFORE)
        if not devices:
            return latest if known else None
        if self._device not in devices:
            return _BEFORE if latest == _BEFORE else _AFTER
        if latest == _AFTER or len(devices) > 1:
            raise Uncapturable(
                f"the ops bring to the CPU, and back, what they go on with on {self._device}"
            )
        return _ON_DEVICE

    def _needed(self, which: int) -> list[fx.Node]:
        """List what a stage takes: inputs, and what other stages work out."""
        found: set[fx.Node] = set()
        waiting = [node for node in self._nodes if self._is_of(node, which)]
        while waiting:
            for node in waiting.pop().all_input_nodes:
                if node.op != "placeholder" and self._stage[node] in (None, which):
                    if self._stage[node] is None:
                        waiting.append(node)
                else:
                    found.add(node)
        return [node for node in self._nodes if node in found]

    def _build(
        self, which: int, needed: list[fx.Node], gives: list[fx.Node], copied: list[fx.Node]
    ) -> Stage:
        """Make a stage.

        Args:
            which: Which one.
            needed: What it takes.
            gives: What is taken of it as it is.
            copied: What the next stage takes copies of.
        """
        part = _Part(self._root, self._mode)
        before = [node for node in needed if self._stage[node] == which - 1]
        own_inputs = [node for node in copied if node.op == "placeholder"]
        for node in dict.fromkeys([*needed, *own_inputs]):
            if node not in before:
                part.take(node, self._places[node])
        self._take_copies(part, before, self._device if which == _ON_DEVICE else None)
        own = [node for node in self._nodes if self._is_of(node, which)]
        writes = [node for node in own if _is_write(node)]
        for node in own:
            if node not in writes:
                part.copy(node)
        results = self._copy(part, copied, packs=which == _BEFORE)
        for node in dict.fromkeys(gives):
            self._places[node] = self._count + len(results)
            results.append(part.of(node))
        self._count += len(results)
        # after all that is read
        for node in writes:
            part.copy(node)
        part.graph.output(tuple(results))
        graph = fx.GraphModule(self._root, part.graph)
        return Stage(graph, part.takes, which == _ON_DEVICE, which == _AFTER)

    def _take_copies(self, part: _Part, nodes: list[fx.Node], device: torch.device | None) -> None:
        """Take what the stage before has made copies of, on a device if that is another one."""
        packs: dict[int, fx.Node] = {}
        rows: list[tuple[fx.Node, int, int]] = []
        for node in nodes:
            place, row = self._copies[node]
            value = _value(self._root, node)
            if row is None:
                part.take(node, place, device)
                continue
            rows.append((node, place, row))
            if place not in packs:
                count = sum(one == place for one, _ in self._copies.values())
                with self._mode:
                    pack = torch.empty(count, dtype=value.dtype, device=device)
                packs[place] = part.take_value(place, pack)
        for node, place, row in rows:
            part.own[node] = part.add(torch.ops.aten.select.int, packs[place], 0, row)

    def _copy(self, part: _Part, nodes: list[fx.Node], packs: bool) -> list[fx.Node]:
        """Make copies for the next stage; the numbers of a type as one tensor, if they are packed.

        Returns:
            What is returned of the stage for them.
        """
        aten = torch.ops.aten
        groups: dict[Any, list[fx.Node]] = {}
        for place, node in enumerate(nodes):
            value = _value(self._root, node)
            if not isinstance(value, torch.Tensor):
                raise Uncapturable("the ops work out a size on one device that another one takes")
            is_packed = packs and not value.dim()
            groups.setdefault(value.dtype if is_packed else place, []).append(node)
        results: list[fx.Node] = []
        for kind, group in groups.items():
            is_packed, place = isinstance(kind, torch.dtype), self._count + len(results)
            for row, node in enumerate(group):
                self._copies[node] = place, row if is_packed else None
            inner = [part.of(node) for node in group]
            if is_packed:
                ones = [part.add(aten.unsqueeze.default, one, 0) for one in inner]
                results.append(part.add(aten.cat.default, ones))
            else:
                results.append(part.add(aten.clone.default, *inner))
        return results


class _Part:
    """The graph of a stage, as it is made.

    Args:
        root: What is split.
        mode: The mode that its values are of.

    Attributes:
        graph: The graph.
        takes: The place of each of its inputs among all values.
        own: What stands in it for the nodes of what is split.
    """

    def __init__(self, root: fx.GraphModule, mode: Any) -> None:
        self._root = root
        self._mode = mode
        self.graph = fx.Graph()
        self.takes: list[int] = []
        self.own: dict[fx.Node, fx.Node] = {}

    def take(self, node: fx.Node, place: int, device: torch.device | None = None) -> None:
        """Have an input for a node, on another device if one is given."""
        value = _value(self._root, node)
        if device is not None:
            with self._mode:
                value = torch.empty_strided(
                    value.size(), value.stride(), dtype=value.dtype, device=device
                )
        self.own[node] = self.take_value(place, value)

    def take_value(self, place: int, value: Any) -> fx.Node:
        """Have an input that is such a value."""
        node = self.graph.placeholder(f"input_{len(self.takes)}")
        node.meta["val"] = value
        self.takes.append(place)
        return node

    def of(self, node: fx.Node) -> fx.Node:
        """Return what stands for a node; what any stage can work out is worked out here."""
        if node not in self.own:
            self.copy(node)
        return self.own[node]

    def copy(self, node: fx.Node) -> None:
        """Do what a node does."""
        self.own[node] = self.graph.node_copy(node, self.of)

    def add(self, target: Any, *args: Any) -> fx.Node:
        """Call an operation besides."""
        node = self.graph.call_function(target, args)
        with self._mode, torch.no_grad():
            values = fx.node.map_arg(args, lambda one: _value(self._root, one))
            node.meta["val"] = target(*values)
        return node


def _value(root: fx.GraphModule, node: fx.Node) -> Any:
    """Return what a node gives, without values."""
    if node.op == "get_attr":
        return attrgetter(str(node.target))(root)
    return node.meta.get("val")


def _devices(root: fx.GraphModule, node: fx.Node) -> set[torch.device]:
    """List where tensors are that a node gives."""
    value = None if node.op == "output" else _value(root, node)
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return {one.device for one in parts if isinstance(one, torch.Tensor)}


def _is_write(node: fx.Node) -> bool:
    """Return whether a node writes to an input."""
    target: Any = node.args[0] if node.args else None
    is_copy = node.target is torch.ops.aten.copy_.default
    return is_copy and isinstance(target, fx.Node) and target.op == "placeholder"
