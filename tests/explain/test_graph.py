"""Graphs of explanations, read by parsers of their languages."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from typing import Any

import pydot
import pytest
from hypothesis import given, settings

from fastnet.explain import Explanation
from fastnet.network import TorchNetwork
from fastnet.op.numpyop import LambdaOp as LambdaArray
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.meta import Fuse
from fastnet.slicer import AxisSlicer
from tests.explain.programs import desired_keys, make_ops, shapes

# pydot's parser uses names that pyparsing has renamed
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pydot")

Edges = set[tuple[str, str, str]]

AWKWARD = [
    'say "x" <b>&amp</b>',
    "a[b](c){d} größe_日本",
    "back\\slash\\n",
    "#35|`x`-->y",
    "end",
    "two\nlines",
    "bell\x07",
]

# Statements of a flowchart: a node, an edge, a class and its members.
NODE = re.compile(r'    (\w+)(?:\(\["([^"]*)"\]\)|\["([^"]*)"\])')
EDGE = re.compile(r'    (\w+) -->\|"([^"]*)"\| (\w+)')
CLASS = re.compile(r"    (?:classDef unneeded [\w:#,-]+|class (\w+(?:,\w+)*) unneeded)")
# Characters of a label outside of entities: nothing that Mermaid or HTML would read.
LABEL = re.compile(r"(?:[^\W]|[ .,:=()+*/'·]|#\d+;|<br/>)*")


def parse_mermaid(text: str) -> tuple[dict[str, str], Edges, set[str]]:
    """Read a flowchart: labels of nodes, edges, and the nodes that are not needed."""
    first, *lines = text.splitlines()
    assert first == "flowchart TD"
    nodes = {found[1]: found[2] or found[3] for line in lines if (found := NODE.fullmatch(line))}
    edges = {found.groups() for line in lines if (found := EDGE.fullmatch(line))}
    classes = [found for line in lines if (found := CLASS.fullmatch(line))]
    assert len(nodes) + len(edges) + len(classes) == len(lines)
    assert all(map(LABEL.fullmatch, [*nodes.values(), *(label for _, label, _ in edges)]))
    assert {end for source, _, target in edges for end in (source, target)} <= set(nodes)
    return (
        {name: unescape(label) for name, label in nodes.items()},
        {(source, target, unescape(label)) for source, label, target in edges},
        {name for found in classes for name in (found[1] or "").split(",") if name},
    )


def unescape(label: str) -> str:
    return re.sub(r"#(\d+);", lambda match: chr(int(match[1])), label.replace("<br/>", "\n"))


def parse_dot(text: str) -> tuple[dict[str, str], Edges]:
    """Read a graph: labels of nodes, and edges."""
    (graph,) = pydot.graph_from_dot_data(text)
    nodes = {
        node.get_name(): plain(node.get_label())
        for node in graph.get_nodes()
        if node.get_name() not in ("node", "edge")
    }
    edges = {
        (edge.get_source(), edge.get_destination(), plain(edge.get_label()))
        for edge in graph.get_edges()
    }
    return nodes, edges


def plain(quoted: str) -> str:
    assert quoted[0] == quoted[-1] == '"'
    return re.sub(
        r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], quoted[1:-1], flags=re.S
    )


def flows(explanation: Explanation) -> Edges:
    """List by hand which key goes from where to where, without slicers and postprocessing."""
    edges = set()
    for key in explanation.keys:
        for life in key.lifetimes:
            source = "batch" if life.writer is None else f"op{life.writer}"
            edges.update((source, f"op{place}", key.name) for place in life.readers)
            if life.end == "returned":
                edges.add((source, "result", key.name))
        if key.result == "batch":
            edges.add(("batch", "result", key.name))
    return edges


def split(edges: Edges) -> Edges:
    return {(source, target, key) for source, target, keys in edges for key in keys.split(", ")}


@given(drawn=shapes(), desired=desired_keys)
@settings(max_examples=10)
def test_graphs_of_random_programs(drawn: Any, desired: Any) -> None:
    explanation = TorchNetwork(make_ops(drawn)).explain("infer", 1, "", desired)
    nodes, edges, unneeded = parse_mermaid(explanation.to_mermaid())
    assert set(nodes) == {"batch", "result", *(f"op{item.index}" for item in explanation.ops)}
    assert unneeded == {f"op{place}" for place in explanation.unneeded}
    assert split(edges) == flows(explanation)
    dot_nodes, dot_edges = parse_dot(explanation.to_dot())
    assert dot_nodes == nodes
    assert dot_edges == edges


@pytest.mark.parametrize("key", AWKWARD, ids=repr)
def test_awkward_keys(key: str) -> None:
    network = TorchNetwork([Fuse([LambdaOp(lambda x: x, key, "y")]), LambdaOp(abs, "y", f"{key}!")])
    explanation = network.explain("infer", desired_output_keys=[key, f"{key}!"])
    _, edges, _ = parse_mermaid(explanation.to_mermaid())
    assert ("batch", "op0", key) in edges
    nodes, dot_edges = parse_dot(explanation.to_dot())
    assert ("batch", "op0", key) in dot_edges
    assert nodes["op0"] == f"0 Fuse\n· LambdaOp: {key} -> y"


def test_postprocessing() -> None:
    network = TorchNetwork(
        [LambdaOp(lambda x, w: x * w, ["x", "w"], "y")],
        postprocessing=[LambdaArray(lambda y: y, "y", "shown")],
        slicers=[AxisSlicer(axis=0, slice="x", unslice="y")],
    )
    nodes, edges, _ = parse_mermaid(network.explain("infer").to_mermaid())
    assert (nodes["op0"], nodes["post0"]) == ("0 LambdaOp", "post 0 LambdaOp")
    assert edges == {
        ("batch", "op0", "w, x"),
        ("op0", "post0", "y"),
        ("op0", "result", "y"),
        ("post0", "result", "shown"),
        ("batch", "result", "w, x"),
    }
    assert parse_dot(network.explain("infer").to_dot())[1] == edges


def test_in_a_notebook() -> None:
    explanation = TorchNetwork([LambdaOp(abs, "x", "<y>")]).explain("infer")
    page = explanation._repr_html_()
    assert html.unescape(page) == f"<pre>{explanation}</pre>"
    assert "<y>" not in page


def test_a_picture_is_drawn_by_graphviz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    explanation = TorchNetwork([LambdaOp(abs, "x", "y")]).explain("infer")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"Graphviz.*use to_mermaid\(\)"):
        explanation.plot(tmp_path / "graph.svg")
    program = tmp_path / "dot"
    program.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys\n"
        "kind, option, path = sys.argv[1:]\n"
        "if kind == '-Tunknown': sys.exit('no such format')\n"
        "assert (kind, option) == ('-Tsvg', '-o')\n"
        "pathlib.Path(path).write_bytes(sys.stdin.buffer.read())\n"
    )
    program.chmod(0o755)
    explanation.plot(tmp_path / "graph.svg")
    assert (tmp_path / "graph.svg").read_text(encoding="utf-8") == explanation.to_dot()
    with pytest.raises(RuntimeError, match="no such format"):
        explanation.plot(str(tmp_path / "graph.unknown"))
