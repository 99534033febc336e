"""Comparisons of two profiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

import numpy as np

from fastnet.profiling.rows import Row, Section
from fastnet.profiling.table import Table, format_seconds, format_tables

# The same network in another process differs by one or two percent, as its memory lies elsewhere.
LEAST = 0.05
_LEAST_OF_STEP = 0.01
_SIXTEENTHS = 16
_NOISY = "too noisy"
_COLUMNS = ("", "kind", "before", "after", "change", "noise", "least", "verdict")


@dataclass(frozen=True)
class ComparedRow:
    """A part of a step in two profiles. Times are seconds per step.

    Other programs on the machine make steps slower, never faster. So a profile's time of a part is
    the least of its block medians (`Row.blocks`). Its noise is how much the least of each sixteenth
    of the steps, in order, varies, without the slowest third: where the machine's own speed
    changes, most are slower. The noise of a change is the root of the sum of both squares. A part
    grew or shrank if the change is larger than its noise, and at least as large as `least`.

    Attributes:
        name: The name of the part.
        kind: Its kind; "step" for the step itself.
        index: Its index, in the later profile if that has it.
        section: The section.
        before: Its time in the first profile, or None if that lacks it.
        after: Its time in the second profile, or None if that lacks it.
        difference: `after` minus `before`.
        noise: The noise of the difference, or None if there are too few steps to tell.
        least: The least change that has a verdict.
        verdict: "grew", "shrank", "new", "gone", "too noisy" where a change of the least size
            cannot be excluded, or "".
    """

    name: str
    kind: str
    index: int | None
    section: str
    before: float | None
    after: float | None
    difference: float
    noise: float | None
    least: float
    verdict: str

    @classmethod
    def of(
        cls, before: Row | None, after: Row | None, least: float, least_seconds: float
    ) -> ComparedRow:
        """Compare two rows, of which one may be None."""
        row = after or before
        assert row is not None
        first, second = _estimate(before), _estimate(after)
        difference = (second[0] or 0.0) - (first[0] or 0.0)
        noise = None
        if first[1] is not None and second[1] is not None:
            noise = hypot(first[1], second[1])
        least = max(least * (first[0] or 0.0), least_seconds)
        if before is None or after is None:
            verdict = "new" if before is None else "gone"
        elif noise is not None and abs(difference) > noise and abs(difference) >= least:
            verdict = "grew" if difference > 0 else "shrank"
        else:
            excluded = noise is not None and abs(difference) + noise <= least
            verdict = "" if excluded else _NOISY
        return cls(
            name=row.title,
            kind=row.kind,
            index=row.index,
            section=row.section,
            before=first[0],
            after=second[0],
            difference=difference,
            noise=noise,
            least=least,
            verdict=verdict,
        )

    @property
    def changed(self) -> bool:
        """Whether it grew, shrank, is new or is gone."""
        return self.verdict not in ("", _NOISY)


class Comparison:
    """The changes from one profile to another: the result of `Profile.compare`.

    Attributes:
        steps: The steps of each section that both profiles have.
        rows: Their parts, those that grew most first.
        unmatched: The names of the sections that only one profile has.
        least: The least change that has a verdict, as a fraction.
        notes: Why there is no verdict, or no comparison, where there is none.
    """

    def __init__(self, before: Sequence[Section], after: Sequence[Section], least: float) -> None:
        if not 0 <= least <= 1:
            raise ValueError(
                f"least is a fraction of the step, from 0 to 1 (0.05 is 5 %), but it is {least!r}."
            )
        first = {section.name: section for section in before}
        second = {section.name: section for section in after}
        names = [name for name in first if name in second]
        if not names:
            raise ValueError(
                f"These profiles have no section in common: one has {sorted(first) or 'none'}, "
                f"the other {sorted(second) or 'none'}."
            )
        self.least = least
        self.unmatched = tuple(sorted(first.keys() ^ second.keys()))
        steps: list[ComparedRow] = []
        rows: list[ComparedRow] = []
        for name in names:
            step = ComparedRow.of(first[name].step, second[name].step, least, 0.0)
            steps.append(step)
            floor = _LEAST_OF_STEP * (step.before or 0.0)
            left, right = _numbered(first[name]), _numbered(second[name])
            rows += [
                ComparedRow.of(left.get(key), right.get(key), least, floor)
                for key in {**left, **right}
            ]
        self.steps = tuple(steps)
        self.rows = tuple(sorted(rows, key=lambda row: -row.difference))
        self.notes = tuple(_note(step) for step in steps if step.verdict == _NOISY)
        self.notes += tuple(f"{name}: only in one of the profiles" for name in self.unmatched)

    @property
    def changed(self) -> tuple[ComparedRow, ...]:
        """The rows that changed beyond the noise, or are in one profile only."""
        return tuple(row for row in self.rows if row.changed)

    def __str__(self) -> str:
        tables = []
        for step in self.steps:
            rows = [row for row in self.rows if row.section == step.section]
            title = (
                f"{step.section}: changes per step; a verdict needs more than the noise and "
                f"{100 * self.least:g} % (for a part, {100 * _LEAST_OF_STEP:g} % of the step too)"
            )
            tables.append(Table(title, _COLUMNS, [_cells(row) for row in (*rows, step)]))
        return format_tables(tables, self.notes)

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.rows)} rows, {len(self.changed)} of them changed>"


def _estimate(row: Row | None) -> tuple[float | None, float | None]:
    """Return the time of a row and its noise; an absent row takes no time."""
    if row is None:
        return None, 0.0
    if not row.blocks:
        return row.p50, None
    count = min(_SIXTEENTHS, len(row.blocks))
    least = sorted(float(blocks.min()) for blocks in np.array_split(row.blocks, count))
    return least[0], least[2 * count // 3] - least[0]


def _numbered(section: Section) -> dict[tuple[str, str, int], Row]:
    """Return the parts of a step by kind, name, and number among those of the same name."""
    counts = Counter[tuple[str, str]]()
    found = {}
    for row in section.parts:
        found[row.kind, row.name, counts[row.kind, row.name]] = row
        counts[row.kind, row.name] += 1
    return found


def _note(step: ComparedRow) -> str:
    reason = "too few steps" if step.noise is None else "too noisy"
    return (
        f"{step.section}: {reason} to tell whether the step changed by "
        f"{format_seconds(step.least)} or more. Measure more steps, both before and after; where "
        "other programs run, pin both runs to a core of their own (on Linux with taskset -c)."
    )


def _cells(row: ComparedRow) -> list[str]:
    return [
        row.name,
        row.kind,
        "-" if row.before is None else format_seconds(row.before),
        "-" if row.after is None else format_seconds(row.after),
        f"{'+' if row.difference > 0 else ''}{format_seconds(row.difference)}",
        "?" if row.noise is None else f"± {format_seconds(row.noise)}",
        format_seconds(row.least),
        row.verdict,
    ]
