"""An explanation as a flowchart in Mermaid's language."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastnet.explain.graph import Edge, Node, make_graph

if TYPE_CHECKING:
    from fastnet.explain.explanation import Explanation

__all__ = ["draw"]

_SHAPES = {
    "batch": ("([", "])"),
    "result": ("([", "])"),
    "slicer": ("{{", "}}"),
    "op": ("[", "]"),
    "postprocessing": ("[[", "]]"),
}
_PLAIN = frozenset(" _.,:=()+*/'→·")


def draw(explanation: Explanation) -> str:
    """Draw an explanation.

    Args:
        explanation: The explanation.

    Returns:
        The flowchart.
    """
    graph = make_graph(explanation)
    lines = ["flowchart TD", *map(_node, graph.nodes), *map(_edge, graph.edges)]
    unneeded = [node.name for node in graph.nodes if node.unneeded]
    if unneeded:
        lines += [
            "    classDef unneeded stroke:#d9822b,stroke-width:2px,stroke-dasharray:4",
            f"    class {','.join(unneeded)} unneeded",
        ]
    return "\n".join(lines) + "\n"


def _node(node: Node) -> str:
    start, end = _SHAPES[node.kind]
    return f'    {node.name}{start}"{"<br/>".join(map(_escape, node.lines))}"{end}'


def _edge(edge: Edge) -> str:
    arrow = "-.->" if edge.untouched else "-->"
    return f'    {edge.source} {arrow}|"{_escape(", ".join(edge.keys))}"| {edge.target}'


def _escape(text: str) -> str:
    """Write what could mean something to Mermaid, or to HTML, by its number."""
    return "".join(
        character if character.isalnum() or character in _PLAIN else f"#{ord(character)};"
        for character in text
    )
