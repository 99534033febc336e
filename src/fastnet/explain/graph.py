"""The graph of ops and keys: in Mermaid's and Graphviz's languages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastnet.explain.items import Item

_MERMAID_PLAIN = frozenset(" _.,:=()+*/'·")


def to_mermaid(explanation: Any) -> str:
    """Return the graph as a Mermaid flowchart."""
    lines = ["flowchart TD"]
    nodes = _nodes(explanation)
    for name, item in nodes.items():
        start, end = ("([", "])") if item is None else ("[", "]")
        label = [name] if item is None else _label(name, item)
        lines.append(f'    {name}{start}"{"<br/>".join(map(_escape_mermaid, label))}"{end}')
    for (source, target), keys in _edges(explanation).items():
        lines.append(f'    {source} -->|"{_escape_mermaid(", ".join(keys))}"| {target}')
    unneeded = [name for name, item in nodes.items() if item is not None and item.unneeded]
    if unneeded:
        lines.append("    classDef unneeded stroke:#d9822b,stroke-width:2px,stroke-dasharray:4")
        lines.append(f"    class {','.join(unneeded)} unneeded")
    return "\n".join(lines) + "\n"


def to_dot(explanation: Any) -> str:
    """Return the graph in Graphviz's language."""
    lines = [
        "digraph explanation {",
        '    node [fontname="sans-serif", fontsize=11];',
        '    edge [fontname="sans-serif", fontsize=9];',
    ]
    for name, item in _nodes(explanation).items():
        style = "oval" if item is None else "box"
        if item is not None and item.unneeded:
            style += ', style=dashed, color="#d9822b"'
        label = [name] if item is None else _label(name, item)
        lines.append(f'    {name} [label="{_escape_dot(*label)}", shape={style}];')
    for (source, target), keys in _edges(explanation).items():
        lines.append(f'    {source} -> {target} [label="{_escape_dot(", ".join(keys))}"];')
    return "\n".join([*lines, "}"]) + "\n"


def _escape_mermaid(text: str) -> str:
    """Write characters that Mermaid or HTML could interpret as entities."""
    return "".join(
        character if character.isalnum() or character in _MERMAID_PLAIN else f"#{ord(character)};"
        for character in text
    )


def _escape_dot(*lines: str) -> str:
    text = "\n".join(lines).replace("\\", "\\\\").replace('"', '\\"')
    return text.replace("\r", "").replace("\n", "\\n")


def _nodes(explanation: Any) -> dict[str, Item | None]:
    """Return the item of each node, by the name of the node."""
    return {
        "batch": None,
        **{f"op{item.index}": item for item in explanation.ops},
        **{f"post{item.index}": item for item in explanation.postprocessing},
        "result": None,
    }


def _label(name: str, item: Item) -> Iterator[str]:
    models = f" of {', '.join(item.models)}" if item.models and not item.ops else ""
    prefix = "post " if name.startswith("post") else ""
    yield f"{prefix}{item.index} {item.name}{models}"
    if item.setting:
        yield item.setting
    for inner in item.ops:
        yield f"· {inner.name}: {inner.format_keys()}"


def _edges(explanation: Any) -> dict[tuple[str, str], dict[str, None]]:
    """Return the keys of each edge, by the names of the nodes that it connects."""
    edges: dict[tuple[str, str], dict[str, None]] = {}

    def connect(source: str, target: str, key: str) -> None:
        edges.setdefault((source, target), {})[key] = None

    sources: dict[str, str] = {}  # The node that has the value of a key after the ops.
    for key in explanation.keys:
        for life in key.lifetimes:
            source = "batch" if life.writer is None else f"op{life.writer}"
            for reader in life.readers:
                connect(source, f"op{reader}", key.name)
            if key.returned:
                sources[key.name] = source
    for item in explanation.postprocessing:
        for name in item.inputs:
            connect(sources.get(name, "batch"), f"post{item.index}", name)
        sources.update(dict.fromkeys(item.outputs, f"post{item.index}"))
    for key in explanation.keys:
        if key.result is not None:
            connect(sources.get(key.name, "batch"), "result", key.name)
    return edges
