"""An explanation as a picture: ops as rows, keys as lanes, and how long each value lives."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from fastnet.explain.items import Item
from fastnet.explain.keys import Key, Life

if TYPE_CHECKING:
    from fastnet.explain.explanation import Explanation

__all__ = ["draw", "to_xml"]

_ROW = 26
_LANE = 26
_NARROWEST = 14
_LANES_WIDTH = 1000  # beyond this lanes get narrower
_LETTER = 6.9
_LONGEST_LABEL = 34
_LONGEST_KEY = 24
_SLANT = 0.87, 0.5  # how far a letter of a key's name goes up and to the right
_MARGIN = 12
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# a background of its own, as a notebook does not say which one it has
_STYLE = """
.fastnet-explain { font: 12px system-ui, sans-serif; }
.fastnet-explain .card { fill: #ffffff; stroke: #d0d4da; }
.fastnet-explain .band { fill: #f4f5f7; }
.fastnet-explain text { fill: #24292f; }
.fastnet-explain .faint { fill: #6a737d; }
.fastnet-explain .unneeded { fill: #b35900; font-weight: 600; }
.fastnet-explain line { stroke-width: 2.5; }
.fastnet-explain .batch { stroke: #3f74c9; fill: #3f74c9; }
.fastnet-explain .device { stroke: #d9822b; fill: #d9822b; }
.fastnet-explain .returned { stroke: #2a9561; fill: #2a9561; }
.fastnet-explain .after { stroke: #8a5cc2; fill: #8a5cc2; }
.fastnet-explain .past { stroke: #3f74c9; stroke-width: 1; stroke-dasharray: 2 3; }
.fastnet-explain .read { fill: #ffffff; stroke-width: 2; }
.fastnet-explain .end { stroke-width: 2; fill: none; }
@media (prefers-color-scheme: dark) {
.fastnet-explain .card { fill: #1e2227; stroke: #444c56; }
.fastnet-explain .band { fill: #262b31; }
.fastnet-explain text { fill: #d7dce2; }
.fastnet-explain .faint { fill: #9aa4af; }
.fastnet-explain .unneeded { fill: #f0a35e; }
.fastnet-explain .read { fill: #1e2227; }
}
"""


@dataclass(frozen=True)
class _Row:
    """A row of the picture, with what is in the words at its left."""

    label: str
    style: str = ""
    more: str = ""


@dataclass(frozen=True)
class _Rows:
    """The rows, where among them each kind starts, and the rows that slicers have for a key."""

    rows: Sequence[_Row]
    first_op: int
    first_after: int
    cuts: Mapping[str, Sequence[tuple[int, str]]]
    joins: Mapping[str, Sequence[tuple[int, str]]]

    @property
    def result(self) -> int:
        return len(self.rows) - 1


@dataclass(frozen=True)
class _Frame:
    """Where rows and lanes lie."""

    left: float
    top: float
    lane: float

    def x(self, lane: int) -> float:
        return self.left + (lane + 0.5) * self.lane

    def y(self, row: float) -> float:
        return self.top + (row + 0.5) * _ROW


def draw(explanation: Explanation) -> str:
    """Draw an explanation.

    Args:
        explanation: The explanation.

    Returns:
        The picture, as well-formed SVG.
    """
    rows = _rows(explanation)
    keys = explanation.keys
    labels = [_short(row.label, _LONGEST_LABEL) for row in rows.rows]
    names = [_short(key.name, _LONGEST_KEY) for key in keys]
    longest = max(map(len, names), default=0) * _LETTER
    title = f"{explanation.network}, mode {explanation.mode!r}, epoch {explanation.epoch}"
    frame = _Frame(
        left=_MARGIN + max(map(len, labels)) * _LETTER + 12,
        top=_MARGIN + 24 + longest * _SLANT[0] + 10,
        lane=min(_LANE, max(_NARROWEST, _LANES_WIDTH / max(len(keys), 1))),
    )
    right = frame.left + len(keys) * frame.lane
    width = max(right + longest * _SLANT[1], _legend_width() + _MARGIN) + _MARGIN
    bottom = frame.top + len(rows.rows) * _ROW
    height = bottom + 54
    body = [
        f'<rect class="card" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1:.0f}" '
        'rx="6"/>',
        f'<text x="{_MARGIN}" y="{_MARGIN + 14}" font-weight="600">{to_xml(title)}</text>',
        *_bands(rows, labels, frame, width),
        *_headers(keys, names, frame),
    ]
    for lane, key in enumerate(keys):
        body.extend(_lane(key, frame.x(lane), rows, frame))
    body.extend(_legend(bottom + 20))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="fastnet-explain" role="img" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">'
        f"<title>{to_xml(title)}</title><style>{_STYLE}</style>{''.join(body)}</svg>"
    )


def to_xml(text: str) -> str:
    """Write a text so that it stands for itself in XML.

    Args:
        text: The text; what XML has no place for becomes a replacement character.

    Returns:
        The text with entities.
    """
    return escape(_NOT_XML.sub("\ufffd", text))


def _rows(explanation: Explanation) -> _Rows:
    rows = [_Row("batch", "faint")]
    cutters = [item for item in explanation.slicers if item.inputs]
    joiners = [item for item in explanation.slicers if item.outputs]
    rows += [_Row(f"{item.name} cuts", "faint") for item in cutters]
    first_op = len(rows)
    rows += [_op_row(item, item.place in explanation.unneeded) for item in explanation.ops]
    rows += [_Row(f"{item.name} joins", "faint") for item in joiners]
    first_after = len(rows)
    rows += [
        _op_row(item, item.place in explanation.unneeded_postprocessing, "post ")
        for item in explanation.postprocessing
    ]
    rows.append(_Row("result", "faint"))
    cuts, joins = (defaultdict[str, list[tuple[int, str]]](list) for _ in range(2))
    for place, item in enumerate(cutters):
        for key in dict.fromkeys(item.inputs):
            cuts[key].append((1 + place, item.name))
    for place, item in enumerate(joiners):
        for key in dict.fromkeys(item.outputs):
            joins[key].append((first_after - len(joiners) + place, item.name))
    return _Rows(rows, first_op, first_after, cuts, joins)


def _op_row(item: Item, unneeded: bool, prefix: str = "") -> _Row:
    about = ", ".join(item.models) or ", ".join(inner.name for inner in item.inside)
    if unneeded:
        about = f"{about}; not needed" if about else "not needed"
    label = f"{prefix}{item.place}  {item.name}" + (f" ({about})" if about else "")
    more = f"{item.name} ({item.keys()})" + (": nothing needs it" if unneeded else "")
    return _Row(label, "unneeded" if unneeded else "", more)


def _bands(rows: _Rows, labels: list[str], frame: _Frame, width: float) -> Iterator[str]:
    for place, (row, label) in enumerate(zip(rows.rows, labels, strict=True)):
        if place % 2:
            yield (
                f'<rect class="band" x="{_MARGIN - 6}" y="{frame.y(place - 0.5):.1f}" '
                f'width="{width - 2 * _MARGIN + 12:.1f}" height="{_ROW}"/>'
            )
        yield (
            f'<text class="{row.style or "op"}" x="{_MARGIN}" y="{frame.y(place) + 4:.1f}">'
            f"{_tip(row.more or row.label)}{to_xml(label)}</text>"
        )


def _headers(keys: Sequence[Key], names: list[str], frame: _Frame) -> Iterator[str]:
    for lane, (key, name) in enumerate(zip(keys, names, strict=True)):
        x, y = frame.x(lane) + 3, frame.top - 6
        yield (
            f'<text x="{x:.1f}" y="{y:.1f}" transform="rotate(-60 {x:.1f} {y:.1f})">'
            f"{_tip(key.name)}{to_xml(name)}</text>"
        )


def _lane(key: Key, x: float, rows: _Rows, frame: _Frame) -> Iterator[str]:
    if key.taken and key.result == "batch":
        tip = f"{key.name}: the batch's own value comes back"
        yield _line(x, frame.y(0), x, frame.y(rows.result), "past", tip)
    if key.taken:
        yield _dot(x, frame.y(0), "batch", f"{key.name}: taken from the batch")
    # an op that reads a key and writes it has both marks in one row
    both = frozenset(key.readers).intersection(key.writers)
    for life in key.lives:
        yield from _life(key, life, both, x, rows, frame)
    for row, name in rows.cuts.get(key.name, ()):
        yield _ring(x, frame.y(row), "batch", f"{key.name}: cut by {name}")
    yield from _after(key, x, rows, frame)


def _life(
    key: Key, life: Life, both: frozenset[int], x: float, rows: _Rows, frame: _Frame
) -> Iterator[str]:
    comes_back = life.end == "returned"
    kind = "returned" if comes_back else "batch" if life.writer is None else "device"
    start = frame.y(0)
    if life.writer is not None:
        start = frame.y(rows.first_op + life.writer)
        if life.writer in both:
            start += 5
    ends = [frame.y(rows.first_op + place) for place in life.readers]
    if comes_back:
        taken_over = key.written_after[:1] or (key.read_after[-1:] if key.result is None else ())
        ends = [frame.y(rows.first_after + taken_over[0] if taken_over else rows.result)]
    elif life.after is not None:
        ends.append(frame.y(rows.first_op + life.after) + (11 if life.end == "dropped" else -5))
    if ends:
        yield _line(x, start, x, max(start, *ends), kind, f"{key.name}: {_fate(life)}")
    if life.writer is not None:
        yield _dot(x, start, kind, f"{key.name}: written by op {life.writer}")
    for place in life.readers:
        y = frame.y(rows.first_op + place) - (5 if place in both else 0)
        yield _ring(x, y, kind, f"{key.name}: read by op {place}")
    if life.after is not None and life.end != "overwritten":
        y = frame.y(rows.first_op + life.after) + (11 if life.end == "dropped" else 0)
        yield _cross(x, y, kind, f"{key.name}: {_fate(life)}")


def _after(key: Key, x: float, rows: _Rows, frame: _Frame) -> Iterator[str]:
    for row, name in rows.joins.get(key.name, ()):
        yield _ring(x, frame.y(row), "returned", f"{key.name}: joined by {name}")
    if key.written_after:
        start = frame.y(rows.first_after + key.written_after[0])
        end = frame.y(rows.result if key.result else rows.first_after + key.read_after[-1])
        yield _line(x, start, x, end, "after", f"{key.name}: made by postprocessing")
    kind = "returned" if key.returned else "batch"
    both = frozenset(key.read_after).intersection(key.written_after)
    for place in key.read_after:
        y = frame.y(rows.first_after + place) - (5 if place in both else 0)
        rewritten = key.written_after and key.written_after[0] < place
        tip = f"{key.name}: read by postprocessing op {place}"
        yield _ring(x, y, "after" if rewritten else kind, tip)
    for place in key.written_after:
        y = frame.y(rows.first_after + place) + (5 if place in both else 0)
        yield _dot(x, y, "after", f"{key.name}: written by postprocessing op {place}")
    if key.result is not None:
        kind = "after" if key.written_after else kind
        yield _dot(x, frame.y(rows.result), kind, f"{key.name}: {_origin(key)}")


def _origin(key: Key) -> str:
    if key.result == "batch":
        return "the batch's own value comes back"
    return "comes back" if key.result == "ops" else "comes back from postprocessing"


def _fate(life: Life) -> str:
    if life.after is None:
        return "comes back" if life.end == "returned" else "lives on"
    return f"{life.end} {'by' if life.end != 'dropped' else 'after'} op {life.after}"


def _tip(text: str) -> str:
    return f"<title>{to_xml(text)}</title>"


def _line(x1: float, y1: float, x2: float, y2: float, kind: str, tip: str = "") -> str:
    points = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line class="{kind}" {points}>{_tip(tip)}</line>'


def _dot(x: float, y: float, kind: str, tip: str) -> str:
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4">{_tip(tip)}</circle>'


def _ring(x: float, y: float, kind: str, tip: str) -> str:
    return f'<circle class="{kind} read" cx="{x:.1f}" cy="{y:.1f}" r="4">{_tip(tip)}</circle>'


def _cross(x: float, y: float, kind: str, tip: str) -> str:
    path = f"M{x - 4:.1f} {y - 3:.1f}l8 6m0 -6l-8 6"
    return f'<path class="{kind} end" d="{path}">{_tip(tip)}</path>'


_LEGEND = (
    (
        ("dot", "batch", "from the batch"),
        ("dot", "device", "made by an op, and dropped"),
        ("dot", "returned", "comes back"),
    ),
    (
        ("ring", "batch", "read"),
        ("cross", "device", "dropped"),
        ("line", "past", "passes through"),
        ("dot", "after", "by postprocessing"),
    ),
)


def _legend_width() -> float:
    return max(sum(len(text) * _LETTER + 26 for _, _, text in row) for row in _LEGEND)


def _legend(y: float) -> Iterator[str]:
    for number, row in enumerate(_LEGEND):
        yield from _legend_row(row, y + 20 * number)


def _legend_row(row: Sequence[tuple[str, str, str]], y: float) -> Iterator[str]:
    x = float(_MARGIN + 4)
    for shape, kind, text in row:
        if shape == "line":
            yield _line(x - 4, y, x + 6, y, kind, text)
        else:
            mark = {"dot": _dot, "ring": _ring, "cross": _cross}[shape]
            yield mark(x, y, kind, text)
        yield f'<text class="faint" x="{x + 9:.1f}" y="{y + 4:.1f}">{text}</text>'
        x += len(text) * _LETTER + 26


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
