"""Graphs that were traced twice, compared."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["difference", "drop_whole_slices"]


def drop_whole_slices(graph: torch.fx.GraphModule) -> None:
    """Take out the slices of a graph that are all there is.

    `x[:, 1]` slices an axis whose size is open, and leaves one alone whose size is known.

    Args:
        graph: The graph, of known sizes.
    """
    for node in list(graph.graph.nodes):
        if node.target is torch.ops.aten.slice.Tensor:
            whole = node.args[0]
            if node.meta["val"].shape == whole.meta["val"].shape:
                node.replace_all_uses_with(whole)
                graph.graph.erase_node(node)
    graph.recompile()


def difference(one: torch.fx.GraphModule, other: torch.fx.GraphModule) -> str | None:
    """Say in what two graphs differ.

    Args:
        one: A graph.
        other: Another one.

    Returns:
        The first difference; None if there is none.
    """
    first, second = list(one.graph.nodes), list(other.graph.nodes)
    places = {node: place for nodes in (first, second) for place, node in enumerate(nodes)}

    def told(node: Any) -> tuple[Any, ...]:
        arguments = torch.fx.node.map_arg(
            (node.args, node.kwargs), lambda inner: f"%{places[inner]}"
        )
        return node.op, str(node.target) if node.op == "call_function" else "", repr(arguments)

    if len(first) != len(second):
        return "the ops are not the same"
    for left, right in zip(first, second, strict=True):
        if told(left) != told(right):
            return f"{left.format_node()} and then {right.format_node()}"
        if left.op == "get_attr":
            mine, theirs = getattr(one, left.target), getattr(other, right.target)
            if mine is not theirs and not _are_equal(mine, theirs):
                return f"{mine} and then {theirs}"
    return None


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and bool(torch.equal(one.nan_to_num(), other.nan_to_num()))
        and bool(torch.equal(one.isnan(), other.isnan()))
    )
