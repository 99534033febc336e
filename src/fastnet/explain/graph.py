"""An explanation as a graph of ops and keys: in Mermaid's and Graphviz's languages, and drawn."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fastnet.explain.contents import Contents
from fastnet.explain.items import Item

__all__ = ["draw", "to_dot", "to_mermaid"]

# Shapes by kind of node: of Graphviz, and the brackets of Mermaid.
_SHAPES = {
    "batch": ("oval", "([", "])"),
    "result": ("oval", "([", "])"),
    "slicer": ("hexagon", "{{", "}}"),
    "op": ("box", "[", "]"),
    "postprocessing": ("component", "[[", "]]"),
}
_MERMAID_PLAIN = frozenset(" _.,:=()+*/'→·")


@dataclass(frozen=True)
class _Node:
    name: str
    kind: str
    lines: tuple[str, ...]
    unneeded: bool = False


def to_mermaid(explanation: Contents) -> str:
    """Return the graph as a Mermaid flowchart."""
    nodes = list(_nodes(explanation))
    lines = ["flowchart TD"]
    for node in nodes:
        _, start, end = _SHAPES[node.kind]
        label = "<br/>".join(map(_escape_mermaid, node.lines))
        lines.append(f'    {node.name}{start}"{label}"{end}')
    for (source, target), keys in _edges(explanation).items():
        arrow = "-.->" if (source, target) == ("batch", "result") else "-->"
        lines.append(f'    {source} {arrow}|"{_escape_mermaid(", ".join(keys))}"| {target}')
    unneeded = [node.name for node in nodes if node.unneeded]
    if unneeded:
        lines += [
            "    classDef unneeded stroke:#d9822b,stroke-width:2px,stroke-dasharray:4",
            f"    class {','.join(unneeded)} unneeded",
        ]
    return "\n".join(lines) + "\n"


def to_dot(explanation: Contents) -> str:
    """Return the graph in Graphviz's language."""
    lines = [
        "digraph explanation {",
        "    rankdir=TB;",
        '    node [fontname="sans-serif", fontsize=11];',
        '    edge [fontname="sans-serif", fontsize=9];',
    ]
    for node in _nodes(explanation):
        label = "\\n".join(map(_escape_dot, node.lines))
        style = ', style=dashed, color="#d9822b"' if node.unneeded else ""
        lines.append(f'    {node.name} [label="{label}", shape={_SHAPES[node.kind][0]}{style}];')
    for (source, target), keys in _edges(explanation).items():
        style = ", style=dotted" if (source, target) == ("batch", "result") else ""
        label = _escape_dot(", ".join(keys))
        lines.append(f'    {source} -> {target} [label="{label}"{style}];')
    return "\n".join([*lines, "}"]) + "\n"


def draw(explanation: Contents, path: Path) -> None:
    """Write the graph as a picture, with Graphviz."""
    program = shutil.which("dot")
    if program is None:
        raise RuntimeError(
            "A picture of an explanation needs Graphviz, whose program 'dot' was not found. "
            "Install it from https://graphviz.org/download, or use to_mermaid()."
        )
    command = [program, f"-T{path.suffix[1:]}", "-o", str(path)]
    result = subprocess.run(command, input=to_dot(explanation).encode(), capture_output=True)
    if result.returncode:
        raise RuntimeError(f"Graphviz cannot write {path}: {result.stderr.decode().strip()}")


def _escape_mermaid(text: str) -> str:
    """Write characters that Mermaid or HTML could interpret as entities."""
    return "".join(
        character if character.isalnum() or character in _MERMAID_PLAIN else f"#{ord(character)};"
        for character in text
    )


def _escape_dot(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "").replace("\n", "\\n")


def _nodes(explanation: Contents) -> Iterator[_Node]:
    yield _Node("batch", "batch", ("batch",))
    for item in explanation.slicers:
        if item.inputs:
            yield _Node(f"slice{item.index}", "slicer", (f"{item.name} slices",))
    for item in explanation.ops:
        unneeded = item.index in explanation.unneeded
        yield _Node(f"op{item.index}", "op", tuple(_label(item)), unneeded)
    for item in explanation.slicers:
        if item.outputs:
            yield _Node(f"unslice{item.index}", "slicer", (f"{item.name} un-slices",))
    for item in explanation.postprocessing:
        unneeded = item.index in explanation.unneeded_postprocessing
        yield _Node(f"post{item.index}", "postprocessing", tuple(_label(item)), unneeded)
    yield _Node("result", "result", ("result",))


def _label(item: Item) -> Iterator[str]:
    models = f" of {', '.join(item.models)}" if item.models and not item.ops else ""
    yield f"{item.index} {item.name}{models}"
    if item.setting:
        yield item.setting
    yield from _inner_labels(item, 1)


def _inner_labels(item: Item, depth: int) -> Iterator[str]:
    for inner in item.ops:
        keys = f"{', '.join(inner.inputs)} → {', '.join(inner.outputs)}".strip()
        yield f"{'· ' * depth}{inner.name}: {keys}"
        yield from _inner_labels(inner, depth + 1)


def _edges(explanation: Contents) -> dict[tuple[str, str], dict[str, None]]:
    """Return the keys of each edge, by the names of the nodes that it connects."""
    edges: dict[tuple[str, str], dict[str, None]] = {}

    def connect(source: str, target: str, key: str) -> None:
        edges.setdefault((source, target), {})[key] = None

    slicers = {key: f"slice{item.index}" for item in explanation.slicers for key in item.inputs}
    unslicers = {
        key: f"unslice{item.index}" for item in explanation.slicers for key in item.outputs
    }
    for key, slicer in slicers.items():
        connect("batch", slicer, key)
    sources: dict[str, str] = {}  # The node that has the value of a key after the ops.
    for found in explanation.keys:
        name = found.name
        batch = slicers.get(name, "batch")
        for life in found.lifetimes:
            source = batch if life.writer is None else f"op{life.writer}"
            for reader in life.readers:
                connect(source, f"op{reader}", name)
            if life.end == "returned" and found.returned:
                sources[name] = source
        if name in unslicers and found.result is not None:
            connect(sources.get(name, batch), unslicers[name], name)
            sources[name] = unslicers[name]
    for item in explanation.postprocessing:
        node = f"post{item.index}"
        for name in item.inputs:
            connect(sources.get(name, "batch"), node, name)
            if item.deletes:
                sources.pop(name, None)
        sources.update((name, node) for name in item.outputs)
    for found in explanation.keys:
        if found.result is not None:
            connect(sources.get(found.name, "batch"), "result", found.name)
    return edges
