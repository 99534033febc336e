"""An explanation as a graph in Graphviz's language."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastnet.explain.graph import Edge, Node, make_graph

if TYPE_CHECKING:
    from fastnet.explain.explanation import Explanation

__all__ = ["draw"]

_SHAPES = {
    "batch": "oval",
    "result": "oval",
    "slicer": "hexagon",
    "op": "box",
    "postprocessing": "component",
}


def draw(explanation: Explanation) -> str:
    """Draw an explanation.

    Args:
        explanation: The explanation.

    Returns:
        The graph.
    """
    graph = make_graph(explanation)
    lines = [
        "digraph explanation {",
        "    rankdir=TB;",
        '    node [fontname="sans-serif", fontsize=11];',
        '    edge [fontname="sans-serif", fontsize=9];',
        *map(_node, graph.nodes),
        *map(_edge, graph.edges),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _node(node: Node) -> str:
    label = "\\n".join(map(_escape, node.lines))
    style = ', style=dashed, color="#d9822b"' if node.unneeded else ""
    return f'    {node.name} [label="{label}", shape={_SHAPES[node.kind]}{style}];'


def _edge(edge: Edge) -> str:
    style = ", style=dotted" if edge.untouched else ""
    return f'    {edge.source} -> {edge.target} [label="{_escape(", ".join(edge.keys))}"{style}];'


def _escape(text: str) -> str:
    """Write a text so that it stands for itself between double quotes."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "").replace("\n", "\\n")
