"""Profiles as tables of plain text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastnet.profiling.rows import Row, Section

_COLUMNS = ("", "kind", "count", "share", "mean", "p50", "p95", "p99", "total")
_LEFT_ALIGNED = ("", "kind")


@dataclass(frozen=True)
class Table:
    """A title, the heads of the columns, and the cells of each line."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]


def format_seconds(seconds: float) -> str:
    """Return a time with a unit that fits it.

    >>> [format_seconds(seconds) for seconds in (0, 4.2e-8, 1.234e-4, 0.0456, 12)]
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


def format_bytes(count: int | None) -> str:
    """Return a number of bytes with a unit that fits it, or "" for None.

    >>> [format_bytes(count) for count in (None, 12, 2048, 3 << 20)]
    ['', '12 B', '2.0 KiB', '3.0 MiB']
    """
    if count is None:
        return ""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 3)
    return f"{count / 1024**power:.1f} {('KiB', 'MiB', 'GiB')[power - 1]}"


def profile_tables(
    sections: Sequence[Section], entries: Sequence[Row], update: bool = True
) -> list[Table]:
    """Return a table for each section, and one for entering the network.

    `update` is whether the changes that the steps made to models were kept.
    """
    tables = [_section_table(section, update) for section in sections]
    if entries:
        columns = [name for name in _COLUMNS if name != "share"]
        lines = [_cells(row, f"{row.section}: {row.name}") for row in entries]
        tables.append(Table("entering the network", columns, lines))
    return tables


def _section_table(section: Section, update: bool) -> Table:
    has_device = any(row.device_mean is not None for row in section.rows)
    device_columns = ["device mean", "device p99"] if has_device else []
    columns = [*_COLUMNS, *device_columns, "bytes"]
    other_rows = [row for row in section.rows if not row.in_step]
    lines = []
    for row in [*section.parts, section.step, *other_rows]:
        cells = _cells(row, row.title)
        share = "" if row in other_rows else f"{section.share(row):.1%}"
        cells.insert(_COLUMNS.index("share"), share)
        if has_device:
            times = (row.device_mean, row.device_p99)
            cells += ["" if time is None else format_seconds(time) for time in times]
        lines.append([*cells, format_bytes(row.bytes)])
    title = f"{section.name}: {section.steps} steps"
    if section.trains:
        title += ", which trained the models" if update else "; the models were restored"
    return Table(title, columns, lines)


def _cells(row: Row, title: str) -> list[str]:
    times = map(format_seconds, (row.mean, row.p50, row.p95, row.p99, row.total))
    return [title, row.kind, str(row.count), *times]


def format_tables(tables: Sequence[Table], notes: Sequence[str] = ()) -> str:
    """Return tables as plain text, with notes after them."""
    return "\n\n".join([*map(_format_table, tables), *notes])


def _format_table(table: Table) -> str:
    lines = [list(table.columns), *table.lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [table.title]
    for cells in lines:
        padded = [
            cell.ljust(width) if name in _LEFT_ALIGNED else cell.rjust(width)
            for name, cell, width in zip(table.columns, cells, widths, strict=True)
        ]
        text.append("  ".join(padded).rstrip())
    return "\n".join(text)
