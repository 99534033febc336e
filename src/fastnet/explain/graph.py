"""An explanation as nodes and edges, for the languages that draw them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastnet.explain.items import Item

if TYPE_CHECKING:
    from fastnet.explain.explanation import Explanation

__all__ = ["Edge", "Graph", "Node", "make_graph"]


@dataclass(frozen=True)
class Node:
    """A node of the graph.

    Attributes:
        name: What edges call it: letters and digits.
        lines: The lines of its label.
        kind: "batch", "slicer", "op", "postprocessing" or "result".
        unneeded: Whether nothing needs it.
    """

    name: str
    lines: tuple[str, ...]
    kind: str
    unneeded: bool = False


@dataclass(frozen=True)
class Edge:
    """Values that go from one node to another.

    Attributes:
        source: The name of the node that they come from.
        target: The name of the node that they go to.
        keys: Their keys.
        untouched: Whether the batch's own values pass by the ops.
    """

    source: str
    target: str
    keys: tuple[str, ...]
    untouched: bool = False


@dataclass(frozen=True)
class Graph:
    """The nodes in the order in which they run, and the edges."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


def make_graph(explanation: Explanation) -> Graph:
    """Lay an explanation out as a graph.

    Args:
        explanation: The explanation.

    Returns:
        The graph.
    """
    # the keys of each edge, in a dict as a set that keeps its order
    edges: dict[tuple[str, str, bool], dict[str, None]] = {}
    cutters = {key: f"cut{item.place}" for item in explanation.slicers for key in item.inputs}
    joiners = {key: f"join{item.place}" for item in explanation.slicers for key in item.outputs}

    def link(source: str, target: str, key: str, untouched: bool = False) -> None:
        edges.setdefault((source, target, untouched), {})[key] = None

    for cut, cutter in cutters.items():
        link("batch", cutter, cut)
    holders: dict[str, str] = {}  # who has the value of a key once the ops are done
    for key in explanation.keys:
        for life in key.lives:
            batch = cutters.get(key.name, "batch")
            source = batch if life.writer is None else f"op{life.writer}"
            for reader in life.readers:
                link(source, f"op{reader}", key.name)
            if life.end == "returned" and key.returned:
                holders[key.name] = source
        joiner = joiners.get(key.name)
        source = holders.get(key.name) or cutters.get(key.name, "batch")
        if joiner is not None and key.result is not None:
            link(source, joiner, key.name)
            holders[key.name] = joiner
    for item in explanation.postprocessing:
        name = f"post{item.place}"
        for read in item.inputs:
            link(holders.get(read, "batch"), name, read)
            if item.deletes:
                holders.pop(read, None)
        holders.update((written, name) for written in item.outputs)
    for key in explanation.keys:
        if key.result is not None:
            source = holders.get(key.name, "batch")
            link(source, "result", key.name, untouched=source == "batch")
    return Graph(
        tuple(_nodes(explanation)),
        tuple(
            Edge(source, target, tuple(keys), untouched)
            for (source, target, untouched), keys in edges.items()
        ),
    )


def _nodes(explanation: Explanation) -> Iterator[Node]:
    yield Node("batch", ("batch",), "batch")
    for item in explanation.slicers:
        if item.inputs:
            yield Node(f"cut{item.place}", (f"{item.name} cuts",), "slicer")
    for item in explanation.ops:
        unneeded = item.place in explanation.unneeded
        yield Node(f"op{item.place}", tuple(_label(item)), "op", unneeded)
    for item in explanation.slicers:
        if item.outputs:
            yield Node(f"join{item.place}", (f"{item.name} joins",), "slicer")
    for item in explanation.postprocessing:
        unneeded = item.place in explanation.unneeded_postprocessing
        yield Node(f"post{item.place}", tuple(_label(item)), "postprocessing", unneeded)
    yield Node("result", ("result",), "result")


def _label(item: Item) -> Iterator[str]:
    models = f" of {', '.join(item.models)}" if item.models and not item.inside else ""
    yield f"{item.place} {item.name}{models}"
    if item.setting:
        yield item.setting
    yield from _inner(item, 1)


def _inner(item: Item, depth: int) -> Iterator[str]:
    for inner in item.inside:
        keys = f"{', '.join(inner.inputs)} → {', '.join(inner.outputs)}".strip()
        yield f"{'· ' * depth}{inner.name}: {keys}"
        yield from _inner(inner, depth + 1)
