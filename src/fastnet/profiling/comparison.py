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
        sections_before = {section.name: section for section in before}
        sections_after = {section.name: section for section in after}
        pairs = [
            (section, sections_after[name])
            for name, section in sections_before.items()
            if name in sections_after
        ]
        if not pairs:
            raise ValueError(
                "These profiles have no section in common: the first has "
                f"{sorted(sections_before) or 'none'}, the second "
                f"{sorted(sections_after) or 'none'}."
            )
        self.steps = tuple(ComparedRow(old.step, new.step) for old, new in pairs)
        self.rows = tuple(row for old, new in pairs for row in _match_parts(old, new))
        self.unmatched = tuple(sorted(sections_before.keys() ^ sections_after.keys()))

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


def _match_parts(before: Section, after: Section) -> list[ComparedRow]:
    """Match the parts of two steps; a new part follows the part that precedes it in `after`."""
    rows_before, rows_after = _parts_by_key(before), _parts_by_key(after)
    keys, position = list(rows_before), 0
    for key in rows_after:
        if key in rows_before:
            position = keys.index(key) + 1
        else:
            keys.insert(position, key)
            position += 1
    return [ComparedRow(rows_before.get(key), rows_after.get(key)) for key in keys]


def _parts_by_key(section: Section) -> dict[tuple[str, str, int], Row]:
    """Return the parts of a step by kind, name, and number among parts of that kind and name."""
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
