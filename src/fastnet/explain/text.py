"""An explanation as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastnet.explain.items import Item
from fastnet.explain.keys import Key, Life
from fastnet.explain.schedules import Schedules

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from fastnet.explain.explanation import Explanation

__all__ = ["lines", "render"]

WIDTH = 96
_MOST_CHANGES = 8
_WIDEST = 30
_LEAST = 20

Line = tuple[str, str]

_STYLES = {"heading": "bold", "error": "bold red", "finding": "yellow", "idle": "dim", "": ""}


def lines(explanation: Explanation, width: int = WIDTH) -> Iterator[Line]:
    """Write an explanation down.

    Args:
        explanation: The explanation.
        width: How long a line may be.

    Yields:
        Its lines, each with what it is: "heading", "error", "finding", "idle" or "".
    """
    for part in (_opening, _ops, _keys, _schedules, _findings):
        for block in part(explanation):
            yield from block.lines(width)


def render(explanation: Explanation, console: Console, options: ConsoleOptions) -> RenderResult:
    """Write an explanation down in colours, as wide as a terminal is.

    Args:
        explanation: The explanation.
        console: What rich prints on.
        options: What it is like.

    Yields:
        Text that rich prints.
    """
    from rich.text import Text

    for line, kind in lines(explanation, min(WIDTH, options.max_width)):
        yield Text(line, style=_STYLES[kind])


@dataclass(frozen=True)
class _Paragraph:
    """A text that goes on in the next line, further in, where it is too long for one."""

    text: str
    kind: str = ""
    indent: str = "  "
    mark: str = ""

    def lines(self, width: int) -> Iterator[Line]:
        wrapped = textwrap.wrap(
            self.text,
            width,
            initial_indent=self.indent + self.mark,
            subsequent_indent=self.indent + "  ",
            break_on_hyphens=False,
        )
        for line in wrapped or [""]:
            yield line, self.kind


@dataclass(frozen=True)
class _Table:
    """Columns; what is too long for its column goes on below."""

    rows: Sequence[Sequence[str]]
    kinds: Sequence[str]

    def lines(self, width: int) -> Iterator[Line]:
        if not self.rows:
            return
        widths = self._widths(width)
        for row, kind in zip(self.rows, self.kinds, strict=True):
            cells = [
                _wrap_cell(cell, cell_width) for cell, cell_width in zip(row, widths, strict=True)
            ]
            for number in range(max(map(len, cells))):
                parts = [
                    (cell[number] if number < len(cell) else "").ljust(cell_width)
                    for cell, cell_width in zip(cells, widths, strict=True)
                ]
                yield f"  {'  '.join(parts)}".rstrip(), kind

    def _widths(self, width: int) -> list[int]:
        """Share the width out: the last column has what is left, and at least some."""
        columns = list(zip(*self.rows, strict=True))
        widths = [min(max(map(len, column)), _WIDEST) for column in columns]
        shortest = [
            max((len(word) for cell in column for word in cell.split()), default=0)
            for column in columns
        ]
        least = min(widths[-1], _LEAST)
        room = width - 2 * len(widths) - sum(widths[:-1])
        while room < least:
            # a column gives way as long as its words stay whole
            spare, place = max(
                (own - word, place)
                for place, (own, word) in enumerate(zip(widths, shortest, strict=True))
                if place < len(widths) - 1
            )
            if spare <= 0:
                break
            widths[place] -= 1
            room += 1
        widths[-1] = max(room, shortest[-1], 1)
        return widths


def _wrap_cell(text: str, width: int) -> list[str]:
    inner = text.lstrip(" ")
    indent = " " * (len(text) - len(inner))
    return textwrap.wrap(
        inner, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    ) or [""]


def _opening(explanation: Explanation) -> Iterator[_Paragraph | _Table]:
    ds_id = f", ds_id {explanation.ds_id!r}" if explanation.ds_id else ""
    yield _Paragraph(
        f"{explanation.network} in mode {explanation.mode!r}, epoch {explanation.epoch}{ds_id}"
        + (f", on {explanation.device}" if explanation.device else ""),
        "heading",
        indent="",
    )
    if explanation.error is not None:
        yield _Paragraph(f"An opening would fail with {explanation.error}", "error", indent="")
        yield _Paragraph("What follows is what can be said all the same.", indent="")
    for name, optimizer in explanation.models.items():
        how = explanation.spread.get(name)
        spread = "" if how is None else f", {how}"
        yield _Paragraph(f"model '{name}' with {optimizer}{spread}", indent="")
    if explanation.compiled:
        yield _Paragraph(f"steps {explanation.compiled}", indent="")


def _ops(explanation: Explanation) -> Iterator[_Paragraph | _Table]:
    for part, heading in (
        ("ops", "Ops"),
        ("postprocessing", "Postprocessing"),
        ("slicers", "Slicers"),
    ):
        items: Sequence[Item] = getattr(explanation, part)
        idle = explanation.left_out[part]
        if not items and not idle and part != "ops":
            continue
        unneeded: frozenset[int] = frozenset()
        if part == "ops":
            unneeded = explanation.unneeded
        elif part == "postprocessing":
            unneeded = explanation.unneeded_postprocessing
        count = f"{len(items)} in force" + (f", {len(idle)} not" if idle else "")
        yield _Paragraph("")
        yield _Paragraph(f"{heading} ({count})", "heading", indent="")
        rows: list[Sequence[str]] = []
        kinds: list[str] = []
        for item in items:
            assert item.place is not None
            rows.append((str(item.place), item.name, item.keys(), _facts(item, unneeded)))
            kinds.append("finding" if item.place in unneeded else "")
            for row in _inside(item, 1):
                rows.append(row)
                kinds.append("")
        for item in idle:
            rows.append(("-", item.name, item.keys(), f"not in force: {item.reason}"))
            kinds.append("idle")
        yield _Table(rows, kinds)


def _inside(item: Item, depth: int) -> Iterator[Sequence[str]]:
    for inner in item.inside:
        yield "", f"{'  ' * depth}{inner.name}", inner.keys(), _facts(inner, frozenset())
        yield from _inside(inner, depth + 1)


def _facts(item: Item, unneeded: frozenset[int]) -> str:
    facts = []
    if item.place is not None and item.place in unneeded:
        facts.append("NOT NEEDED")
    if item.setting:
        facts.append(item.setting)
    if item.models and not item.inside:
        facts.append(f"model {', '.join(map(repr, item.models))}")
    if item.takes_gradients and not item.inside:
        facts.append("takes gradients")
    if item.deferred:
        facts.append("deferred to the end")
    if item.scheduler is not None:
        facts.append(f"by {item.scheduler}")
    return "; ".join(facts)


def _keys(explanation: Explanation) -> Iterator[_Paragraph | _Table]:
    yield _Paragraph("")
    yield _Paragraph("Keys", "heading", indent="")
    rows: list[Sequence[str]] = [("key", "from", "read by", "dies", "in the result")]
    for key in explanation.keys:
        rows.extend(_key_rows(key))
    kinds = ["idle"] + [""] * (len(rows) - 1)
    yield _Table(rows, kinds)
    yield _Paragraph("")
    device = {key.name for key in explanation.keys if key.to_device}
    facts = [
        ("taken from the batch", explanation.inputs),
        (f"go to {explanation.device}" if _copies(explanation) else "go to the ops", device),
        ("handed back by ops", explanation.returned),
        ("pass through untouched", explanation.untouched),
        ("cut into minibatches", {key.name for key in explanation.keys if key.cut_by}),
        ("whole in each minibatch", explanation.shared),
        ("joined again", {key.name for key in explanation.keys if key.joined_by}),
    ]
    shown = [(label, ", ".join(sorted(names)) or "none") for label, names in facts[:4]]
    shown += [(label, ", ".join(sorted(names))) for label, names in facts[4:] if names]
    yield _Table(shown, [""] * len(shown))
    if any(key.because == "default" for key in explanation.keys):
        yield _Paragraph(
            "All that ops write comes back, as no keys were asked for; with desired_output_keys "
            "the others are dropped early."
        )
    yield _Paragraph("Whatever else a batch has passes through too.")


def _copies(explanation: Explanation) -> bool:
    return explanation.framework == "torch" and explanation.device != "cpu"


def _key_rows(key: Key) -> Iterator[Sequence[str]]:
    result = _result(key)
    if not key.lives:
        yield key.name, _source(key), _after(key), "", result
        return
    for number, life in enumerate(key.lives):
        last = number == len(key.lives) - 1
        source = "batch" if life.writer is None else f"op {life.writer}"
        readers = [f"op {place}" for place in life.readers]
        if last and key.read_after:
            readers.append(_after(key))
        yield (
            key.name if number == 0 else "",
            source,
            ", ".join(readers) or "nothing",
            _death(life),
            result if last else "",
        )


def _source(key: Key) -> str:
    if key.taken:
        return "batch"
    return ", ".join(f"post {place}" for place in key.written_after) or "nowhere"


def _after(key: Key) -> str:
    return ", ".join(f"post {place}" for place in key.read_after)


def _death(life: Life) -> str:
    if life.end == "returned":
        return ""
    if life.end == "unknown":
        return "?"
    if life.end == "overwritten":
        return f"overwritten by op {life.after}"
    if life.end == "deleted":
        return f"deleted by op {life.after}"
    return "at once" if life.after == life.writer else f"after op {life.after}"


def _result(key: Key) -> str:
    parts = {
        None: "-",
        "batch": "the batch's own",
        "ops": {
            "desired": "wanted",
            "postprocessing": "for postprocessing",
            "default": "yes, by default",
        }.get(key.because or "", "yes"),
        "postprocessing": "from postprocessing",
    }
    text = parts[key.result]
    if key.result is None:
        return text
    if key.joined_by is not None:
        text += f", joined by {key.joined_by}"
    elif key.cut_by is not None:
        text += f", cut by {key.cut_by}"
    return text


def _schedules(explanation: Explanation) -> Iterator[_Paragraph | _Table]:
    schedules = explanation.schedules
    if not schedules.schedulers:
        return
    yield _Paragraph("")
    yield _Paragraph(f"Schedules (epochs 1 to {schedules.last_epoch})", "heading", indent="")
    for schedule in schedules.schedulers:
        again = "" if schedule.cycle is None else f", round every {schedule.cycle} epochs"
        values = "; ".join(
            f"from epoch {epoch} {value}"
            for number, (epoch, value) in enumerate(schedule.values)
            if number == 0 or value != schedule.values[number - 1][1]
        )
        yield _Paragraph(f"{schedule.where}, {schedule.name}{again}: {values}")
    yield from _changes(schedules, explanation.framework)


def _changes(schedules: Schedules, framework: str) -> Iterator[_Paragraph | _Table]:
    for change in schedules.changes[:_MOST_CHANGES]:
        what = [
            f"{verb} {', '.join(names)}"
            for verb, names in (("starts", change.starts), ("stops", change.stops))
            if names
        ]
        text = f"from epoch {change.epoch}: {'; '.join(what)}"
        if change.traces:
            text += "; a new trace"
        yield _Paragraph(text)
    more = len(schedules.changes) - _MOST_CHANGES
    if more > 0:
        yield _Paragraph(f"... and {more} more changes")
    if framework == "tf" and schedules.changes:
        text = (
            "Ops or optimizers that were not in force together before are traced anew; a set that "
            "comes round again has its trace."
        )
        yield _Paragraph(text)


def _findings(explanation: Explanation) -> Iterator[_Paragraph | _Table]:
    yield _Paragraph("")
    yield _Paragraph(f"Findings ({len(explanation.findings) or 'none'})", "heading", indent="")
    for finding in explanation.findings:
        yield _Paragraph(finding.text, "finding", mark="* ")
