"""Profiles as tables: plain text, or for rich."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastnet.profiling.rows import Row, Section

__all__ = ["Table", "bytes_text", "profile_tables", "seconds_text", "to_plain", "to_rich_table"]

# of what each column is
_COLUMNS = ("", "kind", "count", "share", "mean", "p50", "p95", "p99", "total")
# these stand at the left
_TEXTS = ("", "kind", "verdict")
# a terminal is narrow, and the names tell
_NOT_IN_RICH = ("kind",)
_NOT_IF_NARROW = ("total", "least")
_WIDE = 96
# what is left out next, one after the other, where a terminal is narrower than that
_THEN_NOT = ("p95", "count", "device p99", "p99", "p50", "bytes")
# what a column takes beside its text
_GAP = 2
_LEAST_WIDTH = {"": 14, "verdict": 9}
_MARKS = {"grew": "red", "new": "red", "shrank": "green", "gone": "green"}


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        title: What it is of.
        columns: The heads of its columns.
        lines: The cells of each line.
        final: How many of the lines come after the one that sums the others up, itself among them.
    """

    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]
    final: int = 1


def seconds_text(seconds: float) -> str:
    """Return a time with a unit that fits it.

    Args:
        seconds: The time.

    >>> [seconds_text(seconds) for seconds in (0, 4.2e-8, 1.234e-4, 0.0456, 12)]
    ['0', '42 ns', '123.4 us', '45.60 ms', '12.00 s']
    """
    size = abs(seconds)
    if size < 0.5e-9:
        return "0"
    if size < 1e-6:
        return f"{seconds * 1e9:.0f} ns"
    if size < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    if size < 1:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds:.2f} s"


def bytes_text(count: int | None) -> str:
    """Return an amount of memory with a unit that fits it.

    Args:
        count: How many bytes, or None.

    >>> [bytes_text(count) for count in (None, 12, 2048, 3 << 20)]
    ['', '12 B', '2.0 KiB', '3.0 MiB']
    """
    if count is None:
        return ""
    if count < 1024:
        return f"{count} B"
    amount, units = float(count), iter(("KiB", "MiB", "GiB"))
    unit = "B"
    while amount >= 1024 and unit != "GiB":
        amount /= 1024
        unit = next(units)
    return f"{amount:.1f} {unit}"


def profile_tables(
    sections: Sequence[Section], openings: Sequence[Row], update: bool = True
) -> list[Table]:
    """Return the tables of a profile: one for each section, and one for the openings.

    Args:
        sections: Its sections.
        openings: What opening the network took.
        update: Whether what the steps have changed has stayed.
    """
    tables = [_section_table(section, update) for section in sections]
    if openings:
        lines = [_cells(row, "")[:3] + _cells(row, "")[4:] for row in openings]
        for row, line in zip(openings, lines, strict=True):
            line[0] = f"{row.section}: {row.name}"
        columns = [name for name in _COLUMNS if name != "share"]
        tables.append(Table("openings", columns, lines, final=0))
    return tables


def _section_table(section: Section, update: bool) -> Table:
    has_device = any(row.device_mean is not None for row in section.rows)
    columns = list(_COLUMNS) + ["device mean", "device p99"] * has_device + ["bytes"]
    beside = [row for row in section.rows if not row.in_step]
    lines = []
    for row in [*section.parts, section.step, *beside]:
        share = "" if row in beside else f"{section.share(row):.1%}"
        cells = _cells(row, share)
        if has_device:
            times = (row.device_mean, row.device_p99)
            cells += ["" if time is None else seconds_text(time) for time in times]
        lines.append([*cells, bytes_text(row.bytes)])
    title = f"{section.name}: {section.steps} steps"
    if section.trains:
        title += ", which trained the models" if update else "; models are as they were before"
    return Table(title, columns, lines, 1 + len(beside))


def _cells(row: Row, share: str) -> list[str]:
    times = map(seconds_text, (row.mean, row.p50, row.p95, row.p99, row.total))
    return [row.title, row.kind, str(row.count), share, *times]


def to_plain(tables: Sequence[Table], notes: Sequence[str] = ()) -> str:
    """Return tables as plain text.

    Args:
        tables: The tables.
        notes: What to say after them, line by line.
    """
    return "\n\n".join([*map(_aligned, tables), *notes])


def _aligned(table: Table) -> str:
    lines = [list(table.columns), *table.lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = []
    for cells in lines:
        padded = [
            cell.ljust(width) if name in _TEXTS else cell.rjust(width)
            for name, cell, width in zip(table.columns, cells, widths, strict=True)
        ]
        text.append("  ".join(padded).rstrip())
    return "\n".join([table.title, *text])


def to_rich_table(tables: Sequence[Table], notes: Sequence[str] = ()) -> Any:
    """Return tables as something that rich prints.

    Args:
        tables: The tables.
        notes: What to say after them, line by line.
    """
    return _RichTables(tables, notes)


class _RichTables:
    """Tables that are laid out when the width of the terminal is known."""

    def __init__(self, tables: Sequence[Table], notes: Sequence[str]) -> None:
        self._tables = tables
        self._notes = notes

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        for table in self._tables:
            yield _rich_table(table, _shown(table, options.max_width))
        yield from self._notes


def _shown(table: Table, width: int) -> list[int]:
    """Choose the columns of a table that a terminal has room for."""
    hidden = set(_NOT_IN_RICH if width >= _WIDE else _NOT_IN_RICH + _NOT_IF_NARROW)
    widths = {
        name: _GAP + _LEAST_WIDTH.get(name, max(map(len, column)))
        for name, column in zip(
            table.columns, zip(table.columns, *table.lines, strict=True), strict=True
        )
    }
    for name in _THEN_NOT:
        if _GAP + sum(size for each, size in widths.items() if each not in hidden) <= width:
            break
        hidden.add(name)
    return [place for place, name in enumerate(table.columns) if name not in hidden]


def _rich_table(table: Table, shown: Sequence[int]) -> Any:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    rich = RichTable(title=table.title, title_justify="left", padding=(0, 0, 0, 1))
    rich.box = box.SIMPLE_HEAD
    for name in [table.columns[place] for place in shown]:
        # where the terminal is narrow, names wrap and numbers do not
        text = name in _TEXTS
        rich.add_column(
            name,
            justify="left" if text else "right",
            no_wrap=not text,
            overflow="fold" if text else "ellipsis",
            min_width=_LEAST_WIDTH.get(name),
        )
    for place, cells in enumerate(table.lines):
        left = len(table.lines) - place
        style = "bold" if left == table.final else "dim" if left < table.final else ""
        rich.add_row(
            *[Text(cells[at], style=_MARKS.get(cells[at], "")) for at in shown],
            style=style,
            end_section=left == table.final + 1,
        )
    return rich
