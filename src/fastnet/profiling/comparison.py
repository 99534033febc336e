"""Comparisons of two profiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fastnet.profiling.rows import Row, Section
from fastnet.profiling.table import Table, format_seconds, format_tables

_COLUMNS = ("", "kind", "before p50", "p25", "p75", "after p50", "p25", "p75", "ratio")


@dataclass(frozen=True)
class ComparedRow:
    """A part of a step, or the step itself, in two profiles.

    Attributes:
        before: Its row in the first profile, or None if that lacks it.
        after: Its row in the second profile, or None if that lacks it.
    """

    before: Row | None
    after: Row | None

    @property
    def row(self) -> Row:
        """Its row in the second profile, or in the first if the second lacks it."""
        row = self.after or self.before
        assert row is not None
        return row

    @property
    def title(self) -> str:
        """The title of the row."""
        return self.row.title

    @property
    def kind(self) -> str:
        """The kind of part; "step" for the step itself."""
        return self.row.kind

    @property
    def section(self) -> str:
        """The section of the row."""
        return self.row.section

    @property
    def ratio(self) -> float | None:
        """The p50 of `after` over that of `before`; None if either is missing or `before` is 0."""
        if self.before is None or self.after is None or not self.before.p50:
            return None
        return self.after.p50 / self.before.p50


class Comparison:
    """Two profiles side by side: the result of `Profile.compare`.

    `print` shows a table for each section.

    Attributes:
        steps: The step of each section that both profiles have.
        rows: The parts of these steps, in order.
        unmatched: The names of the sections that only one profile has.
    """

    def __init__(self, before: Sequence[Section], after: Sequence[Section]) -> None:
        first = {section.name: section for section in before}
        second = {section.name: section for section in after}
        names = [name for name in first if name in second]
        if not names:
            raise ValueError(
                f"These profiles have no section in common: one has {sorted(first) or 'none'}, "
                f"the other {sorted(second) or 'none'}."
            )
        self.steps = tuple(ComparedRow(first[name].step, second[name].step) for name in names)
        self.rows = tuple(row for name in names for row in _parts(first[name], second[name]))
        self.unmatched = tuple(sorted(first.keys() ^ second.keys()))

    def __str__(self) -> str:
        tables = []
        for step in self.steps:
            assert step.before is not None
            assert step.after is not None
            title = (
                f"{step.section}: {step.before.count} steps before, {step.after.count} steps after"
            )
            rows = [row for row in self.rows if row.section == step.section]
            tables.append(Table(title, _COLUMNS, [_cells(row) for row in (*rows, step)]))
        notes = [f"{name}: only in one of the profiles" for name in self.unmatched]
        return format_tables(tables, notes)

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.rows)} rows>"


def _parts(before: Section, after: Section) -> list[ComparedRow]:
    """Match the parts of two steps; a new part follows the part that precedes it in `after`."""
    first, second = _numbered(before), _numbered(after)
    keys, position = list(first), 0
    for key in second:
        if key in first:
            position = keys.index(key) + 1
        else:
            keys.insert(position, key)
            position += 1
    return [ComparedRow(first.get(key), second.get(key)) for key in keys]


def _numbered(section: Section) -> dict[tuple[str, str, int], Row]:
    """Return the parts of a step by kind, name, and number among those of the same name."""
    counts = Counter[tuple[str, str]]()
    rows = {}
    for row in section.parts:
        rows[row.kind, row.name, counts[row.kind, row.name]] = row
        counts[row.kind, row.name] += 1
    return rows


def _cells(row: ComparedRow) -> list[str]:
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
    return [row.title, row.kind, *_times(row.before), *_times(row.after), ratio]


def _times(row: Row | None) -> list[str]:
    if row is None:
        return ["-"] * 3
    return [format_seconds(seconds) for seconds in (row.p50, row.p25, row.p75)]
