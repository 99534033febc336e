"""Pictures of explanations, read by parsers of their languages."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pydot
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastnet.explain import Explanation
from fastnet.network import TorchNetwork
from fastnet.op.numpyop import LambdaOp as LambdaArray
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.meta import Fuse
from fastnet.slicer import AxisSlicer
from tests.explain.programs import desired_keys, make_ops, make_postprocessing, shapes

# pydot's parser uses names that pyparsing has renamed
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pydot")

SVG = "{http://www.w3.org/2000/svg}"
Edges = set[tuple[str, str, str]]

AWKWARD = [
    'say "x"',
    "a key with spaces",
    "a[b](c){d}",
    "<script>&amp</script>",
    "größe_日本",
    "back\\slash\\n",
    "#35|`x`-->y",
    "end",
    "two\nlines",
    "'single'",
    "$\\alpha$",
    "bell\x07",
]

# statements of a flowchart: a node, an edge, a class and its members
STRING = r'"([^"]*)"'
NODE = re.compile(
    rf"^    (\w+)(?:\(\[{STRING}\]\)|\{{\{{{STRING}\}}\}}|\[\[{STRING}\]\]|\[{STRING}\])$"
)
EDGE = re.compile(rf"^    (\w+) (-->|-\.->)\|{STRING}\| (\w+)$")
CLASS = re.compile(r"^    (classDef unneeded [\w:#,-]+|class (\w+(?:,\w+)*) unneeded)$")
# what a label may have outside of entities: nothing that Mermaid or HTML would read
LABEL = re.compile(r"^(?:[^\W]|[ .,:=()+*/'→·]|#\d+;|<br/>)*$")


def parse_mermaid(text: str) -> tuple[dict[str, str], Edges, set[str]]:
    """Read a flowchart: labels of nodes, edges, and the nodes nothing needs."""
    nodes: dict[str, str] = {}
    edges: Edges = set()
    unneeded: set[str] = set()
    first, *lines = text.splitlines()
    assert first == "flowchart TD"
    for line in lines:
        if match := NODE.match(line):
            assert match[1] not in nodes
            nodes[match[1]] = next(filter(None, match.groups()[1:]))
        elif match := EDGE.match(line):
            edges.add((match[1], match[4], unescape(match[3])))
        else:
            match = CLASS.match(line)
            assert match, line
            unneeded.update((match[2] or "").split(",") if match[2] else ())
    for label in [*nodes.values(), *(edge[2] for edge in EDGE.findall(text))]:
        assert LABEL.match(label), label
    assert {end for edge in edges for end in edge[:2]} <= set(nodes)
    return {name: unescape(label) for name, label in nodes.items()}, edges, unneeded


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
        for life in key.lives:
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
    assert set(nodes) == {"batch", "result", *(f"op{item.place}" for item in explanation.ops)}
    assert unneeded == {f"op{place}" for place in explanation.unneeded}
    assert split(edges) == flows(explanation)
    dot_nodes, dot_edges = parse_dot(explanation.to_dot())
    assert dot_nodes == nodes
    assert dot_edges == edges


@given(drawn=shapes(), after=shapes(most=3), desired=desired_keys)
@settings(max_examples=10)
def test_svg_of_random_programs(drawn: Any, after: Any, desired: Any) -> None:
    network = TorchNetwork(make_ops(drawn), make_postprocessing(after))
    explanation = network.explain("infer", 1, "", desired)
    root = ElementTree.fromstring(explanation._repr_svg_())
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for circle in root.iter(f"{SVG}circle"):
        assert 0 < float(circle.attrib["cx"]) < width
        assert 0 < float(circle.attrib["cy"]) < height
    for line in root.iter(f"{SVG}line"):
        assert float(line.attrib["y1"]) <= float(line.attrib["y2"]) < height
    tips = [title.text for title in root.iter(f"{SVG}title")]
    for key in explanation.keys:
        assert tips.count(key.name) == 1  # the head of its lane
        for place in key.writers:
            assert f"{key.name}: written by op {place}" in tips
        for place in key.readers:
            assert f"{key.name}: read by op {place}" in tips
        for place in key.read_after:
            assert f"{key.name}: read by postprocessing op {place}" in tips
        for life in key.lives:
            if life.end == "dropped":
                assert f"{key.name}: dropped after op {life.after}" in tips


@pytest.mark.parametrize("key", AWKWARD, ids=repr)
def test_awkward_keys(key: str) -> None:
    network = TorchNetwork([Fuse([LambdaOp(lambda x: x, key, "y")]), LambdaOp(abs, "y", f"{key}!")])
    explanation = network.explain("infer", desired_output_keys=[key, f"{key}!"])
    _, edges, _ = parse_mermaid(explanation.to_mermaid())
    assert ("batch", "op0", key) in edges
    nodes, dot_edges = parse_dot(explanation.to_dot())
    assert ("batch", "op0", key) in dot_edges
    assert nodes["op0"] == f"0 Fuse\nin a row\n· LambdaOp: {key} → y"
    shown = key.replace("\x07", "\ufffd")
    for picture in (explanation._repr_svg_(), explanation._repr_html_()):
        root = ElementTree.fromstring(picture)
        assert f"{shown}: taken from the batch" in [one.text for one in root.iter(f"{SVG}title")]
        assert not list(root.iter(f"{SVG}script"))


@given(
    st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters=":;"), min_size=1, max_size=8
    )
)
@settings(max_examples=25)
def test_any_key(key: str) -> None:
    op = LambdaOp(lambda x: x, "x", "y")
    op.inputs = [key]
    explanation = TorchNetwork([op]).explain("infer")
    _, edges, _ = parse_mermaid(explanation.to_mermaid())
    assert ("batch", "op0", key) in edges
    ElementTree.fromstring(explanation._repr_html_())
    ElementTree.fromstring(explanation._repr_svg_())


def test_slicers_and_postprocessing() -> None:
    network = TorchNetwork(
        [LambdaOp(lambda x, w: x * w, ["x", "w"], "y")],
        postprocessing=[LambdaArray(lambda y: y, "y", "shown")],
        slicers=[AxisSlicer(axis=0, slice="x", unslice="y")],
    )
    _, edges, _ = parse_mermaid(network.explain("infer").to_mermaid())
    assert edges == {
        ("batch", "cut0", "x"),
        ("cut0", "op0", "x"),
        ("batch", "op0", "w"),
        ("op0", "join0", "y"),
        ("join0", "post0", "y"),
        ("join0", "result", "y"),
        ("post0", "result", "shown"),
        ("batch", "result", "w, x"),
    }
    assert parse_dot(network.explain("infer").to_dot())[1] == edges
    tips = [
        title.text
        for title in ElementTree.fromstring(network.explain("infer")._repr_svg_()).iter(
            f"{SVG}title"
        )
    ]
    assert "x: cut by AxisSlicer" in tips
    assert "y: joined by AxisSlicer" in tips
    assert "shown: written by postprocessing op 0" in tips


def test_a_large_picture_stays_in_bounds() -> None:
    ops = [LambdaOp(abs, f"a_rather_long_key_{number}", f"key_{number}") for number in range(60)]
    root = ElementTree.fromstring(TorchNetwork(ops).explain("infer")._repr_svg_())
    assert float(root.attrib["width"]) < 2200
    ops = ops[:20]
    root = ElementTree.fromstring(TorchNetwork(ops).explain("infer")._repr_svg_())
    assert float(root.attrib["width"]) < 1500


def test_a_page_tells_all() -> None:
    network = TorchNetwork([LambdaOp(abs, "x", "y"), LambdaOp(abs, "x", "z")])
    explanation = network.explain("infer", desired_output_keys=["y"])
    page = ElementTree.fromstring(explanation._repr_html_())
    assert [item.text for item in page.iter("li")] == [
        finding.text for finding in explanation.findings
    ]
    (text,) = page.iter("pre")
    assert text.text == str(explanation)
    assert len(list(page.iter(f"{SVG}svg"))) == 1


def test_a_network_without_ops() -> None:
    explanation = TorchNetwork([]).explain("infer")
    assert parse_mermaid(explanation.to_mermaid()) == (
        {"batch": "batch", "result": "result"},
        set(),
        set(),
    )
    ElementTree.fromstring(explanation._repr_svg_())
