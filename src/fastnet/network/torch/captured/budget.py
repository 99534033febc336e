"""What a captured step keeps in memory, and what it works out again in its place.

When a step takes the most memory it is about to go back through the model, and holds whatever the
way forward has left for the way back. Some of that is cheap to have again: it is the cheapest for
its bytes that goes, one by one, which is not always the best choice of all. For that see Jain et
al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization" (2020).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fastnet.backend.torch._internals import storage_key, writes

__all__ = ["keep_within"]

_aten = torch.ops.aten
# of which argument the last axis is summed over, for each element of the result
_PRODUCTS: dict[Any, int] = {_aten.mm.default: 0, _aten.bmm.default: 0, _aten.addmm.default: 1}
# what is tried of the shares between the one that is asked for and all
_SHARES = 4
_AGAIN = "fastnet_again"


def keep_within(graph: fx.GraphModule, share: float, length: Callable[[Any], int]) -> None:
    """Have a graph keep less, and work out again what it then lacks.

    Args:
        graph: The graph. Nothing in it writes to anything, but for what it does last to its inputs.
        share: How much of the bytes that it holds when it holds the most, beside inputs and
            results, it may hold at that place, from 0 to 1. It holds more where nothing else can
            be had again, or where having all of it again would take more memory.
        length: Gives the length of an axis.
    """
    tried = []
    for part in range(_SHARES):
        one = _copied(graph)
        _hold_less(_Values(one, length), share + (1 - share) * part / _SHARES)
        tried.append((_Values(one, length).most, part, one))
    _, _, best = min(tried, key=lambda each: each[:2])
    graph.graph = best


def _copied(graph: fx.GraphModule) -> fx.Graph:
    copy = fx.Graph()
    given = copy.graph_copy(graph.graph, {})
    copy.output(given)
    return copy


def _hold_less(values: _Values, share: float) -> None:
    held = values.held()
    taken = sum(map(values.bytes_of, held))
    most = share * taken
    while taken > most:
        costs = {}
        for one in held:
            cost = values.cost(one)
            if cost is not None:
                costs[one] = cost / values.bytes_of(one)
        if not costs:
            break
        cheapest = min(costs, key=lambda one: costs[one])
        held.remove(cheapest)
        taken -= values.bytes_of(cheapest)
        values.gone.add(cheapest)
    if values.gone:
        values.repeat()


class _Values:
    """The values of a graph.

    Args:
        graph: The graph.
        length: Gives the length of an axis.

    Attributes:
        most: The bytes that are taken where the most memory is.
        gone: The nodes whose values are not held across the place where the most memory is taken.
    """

    def __init__(self, graph: fx.Graph, length: Callable[[Any], int]) -> None:
        self.gone: set[fx.Node] = set()
        self._graph = graph
        self._length = length
        self._nodes = list(graph.nodes)
        self._places = {node: place for place, node in enumerate(self._nodes)}
        # of each node the one whose memory it is in
        self._roots: dict[fx.Node, fx.Node] = {}
        owners: dict[Any, fx.Node] = {}
        for node in self._nodes:
            is_again = node.meta.get(_AGAIN, False)
            keys = [(storage_key(one), is_again) for one in _tensors(node)]
            self._roots[node] = owners.setdefault(keys[0], node) if keys else node
            for key in keys[1:]:
                owners.setdefault(key, node)
        self._ends = dict.fromkeys(self._nodes, -1)
        for node, root in self._roots.items():
            last = max((self._places[user] for user in node.users), default=-1)
            self._ends[root] = max(self._ends[root], last)
        # from there on inputs are written to
        self._last = next(
            place for place, node in enumerate(self._nodes) if node.op == "output" or _writes(node)
        )
        self.most, self._fullest = self._find_fullest()

    def bytes_of(self, node: fx.Node) -> int:
        """Return how much memory a node takes for its value."""
        if node.op != "call_function" or self._roots[node] is not node:
            return 0
        return sum(self._numel(one) * one.element_size() for one in _tensors(node))

    def _find_fullest(self) -> tuple[int, int]:
        """Find where the most memory is taken, and how much."""
        ending: dict[int, int] = {}
        now = most = found = 0
        for place, node in enumerate(self._nodes):
            taken = self.bytes_of(node)
            now += taken
            ending[self._ends[node]] = ending.get(self._ends[node], 0) + taken
            if now > most:
                most, found = now, place
            now -= ending.pop(place, 0)
        return most, found

    def held(self) -> list[fx.Node]:
        """List what is held across that place, but for results."""
        given = {
            self._roots[read] for node in self._nodes[self._last :] for read in node.all_input_nodes
        }
        return [
            node
            for node in self._nodes[: self._fullest]
            if self._ends[node] > self._fullest and node not in given and self.bytes_of(node)
        ]

    def cost(self, node: fx.Node) -> float | None:
        """Count the operations that it takes to have a value again.

        Args:
            node: Its node.

        Returns:
            Their number; None if it would be another value.
        """
        total, waiting, seen = 0.0, [node], set[fx.Node]()
        while waiting:
            one = waiting.pop()
            if one in seen or (one is not node and self._is_there(one)):
                continue
            seen.add(one)
            if not self._is_repeatable(one):
                return None
            total += self._operations(one)
            waiting += one.all_input_nodes
        return total

    def repeat(self) -> None:
        """Work out again what is gone, where it is read."""
        again: dict[fx.Node, fx.Node] = {}
        for user in self._nodes[self._fullest + 1 : self._last]:
            for node in user.all_input_nodes:
                with self._graph.inserting_before(user):
                    user.replace_input_with(node, self._again(node, again))
        self._graph.eliminate_dead_code()

    def _again(self, node: fx.Node, again: dict[fx.Node, fx.Node]) -> fx.Node:
        if self._is_there(node):
            return node
        if node not in again:
            inputs = {one: self._again(one, again) for one in node.all_input_nodes}
            again[node] = self._graph.node_copy(node, inputs.__getitem__)
            # what stands for its value is in the memory of the other one
            again[node].meta[_AGAIN] = True
        return again[node]

    def _is_there(self, node: fx.Node) -> bool:
        """Return whether a value is there behind the place where the most memory is taken."""
        root = self._roots[node]
        if root.op != "call_function" or not _tensors(node) or self._places[root] > self._fullest:
            return True
        return root not in self.gone and self._ends[root] > self._fullest

    def _is_repeatable(self, node: fx.Node) -> bool:
        target: Any = node.target
        if target is operator.getitem:
            return True
        return (
            getattr(target, "namespace", None) == "aten"
            and torch.Tag.nondeterministic_seeded not in target.tags
            and not writes(target)
        )

    def _operations(self, node: fx.Node) -> float:
        each: Any = 1
        if node.target in _PRODUCTS:
            summed: Any = node.args[_PRODUCTS[node.target]]
            each = self._length(summed.meta["val"].shape[-1])
        elif node.target is _aten.convolution.default:
            filters: Any = node.args[1]
            each = self._numel(filters.meta["val"]) / self._length(filters.meta["val"].shape[0])
        return sum(map(self._numel, _tensors(node))) * float(each)

    def _numel(self, tensor: torch.Tensor) -> int:
        count = 1
        for size in tensor.shape:
            count *= self._length(size)
        return count


def _writes(node: fx.Node) -> bool:
    return hasattr(node.target, "namespace") and writes(node.target)


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    found = value if isinstance(value, (list, tuple)) else [value]
    return [one for one in found if isinstance(one, torch.Tensor)]
