"""Two profiles side by side: which parts of a step changed, and how sure that is."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from fastnet.profiling.blocks import LEAST_STEPS
from fastnet.profiling.compared import LEVEL, NOISY, ComparedRow
from fastnet.profiling.estimates import adjusted
from fastnet.profiling.pace import TOLERANCE
from fastnet.profiling.plot import draw_comparison
from fastnet.profiling.rows import Row, Section
from fastnet.profiling.table import Table, seconds_text, to_plain, to_rich_table

__all__ = ["LEAST", "Comparison"]

# the least change worth a verdict, as a part of what there was: the same network in another
# process differs by a per cent or two, as its memory lies elsewhere
LEAST = 0.05
# the least change of a part, beside that, as a part of the step
_LEAST_OF_STEP = 0.01
_SHARED = (
    "Where others run programs too, pin both runs to one core that they leave alone (on Linux with "
    "taskset -c), and take turns: before, after, before, after."
)
_COLUMNS = ("", "kind", "before", "after", "change", "95 %", "least", "verdict")


def _judged(rows: Sequence[ComparedRow]) -> list[ComparedRow]:
    """Judge rows that are looked at together: of many, some look changed by chance."""
    known = [row for row in rows if row.chance is not None and not row.verdict]
    corrected = adjusted([row.chance for row in known if row.chance is not None])
    by_row = dict(zip(map(id, known), corrected, strict=True))
    return [row.judged(by_row.get(id(row))) for row in rows]


class Comparison:
    """What changed from one profile to another.

    Attributes:
        steps: The steps of each section that both have.
        rows: Their parts, those that grew most first.
        unmatched: The names of the sections that only one of them has.
        least: The least change of a step that has a verdict, as a part of the step.
        notes: Why there is no telling, where there is none.
    """

    def __init__(
        self,
        steps: tuple[ComparedRow, ...],
        rows: tuple[ComparedRow, ...],
        unmatched: tuple[str, ...],
        pairs: tuple[tuple[Section, Section], ...],
        least: float = LEAST,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.steps = steps
        self.rows = rows
        self.unmatched = unmatched
        self.least = least
        self.notes = notes
        self._pairs = pairs

    @classmethod
    def of(
        cls,
        before: Sequence[Section],
        after: Sequence[Section],
        least: float = LEAST,
        same_clockwork: bool = True,
        waits: Mapping[str, tuple[Row, Row]] | None = None,
    ) -> Comparison:
        """Compare the sections of two profiles by their names.

        Args:
            before: Those of the first.
            after: Those of the second.
            least: The least change worth a verdict, as a part of what there was.
            same_clockwork: Whether the same work takes equally long in both, so that their paces
                can be compared.
            waits: By the names of sections, what a loader was waited for in both.

        Raises:
            ValueError: If they have none in common, or `least` is not from 0 to 1.
        """
        if not 0 <= least <= 1:
            raise ValueError(
                f"least is a part of the step, from 0 to 1 (0.05 is 5 %), but it is {least!r}."
            )
        first = {section.name: section for section in before}
        second = {section.name: section for section in after}
        names = [name for name in first if name in second]
        if not names:
            raise ValueError(
                f"These profiles have nothing to compare: one is of {sorted(first) or 'no steps'}, "
                f"the other of {sorted(second) or 'no steps'}."
            )
        pairs = tuple((first[name], second[name]) for name in names)
        steps: list[ComparedRow] = []
        rows: list[ComparedRow] = []
        notes: list[str] = []
        for one, other in pairs:
            slower = _slower(one, other, same_clockwork)
            step = ComparedRow.of(one.step, other.step, least, 0.0, slower)
            at_least = _LEAST_OF_STEP * (step.before or 0.0)
            matched = list(_matched(one, other))
            if waits is not None and one.name in waits:
                matched.append(waits[one.name])
            steps.append(step)
            rows += _judged([ComparedRow.of(*parts, least, at_least, slower) for parts in matched])
            notes += _notes(one, other, slower)
        rows.sort(key=lambda row: -row.difference)
        judged = _judged(steps)
        for step, pair in zip(judged, pairs, strict=True):
            slower = _slower(*pair, same_clockwork)
            if step.verdict == NOISY and step.noise is not None and slower <= 1 + TOLERANCE:
                notes.append(_advice(step, step.noise, min(section.steps for section in pair)))
        return cls(
            tuple(judged),
            tuple(rows),
            tuple(sorted(first.keys() ^ second.keys())),
            pairs,
            least,
            tuple(notes),
        )

    @property
    def changed(self) -> tuple[ComparedRow, ...]:
        """The rows that changed beyond the noise, or are in one profile only."""
        return tuple(row for row in self.rows if row.changed)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as a dict of plain values; times are in seconds."""
        return {
            "schema": "fastnet.comparison/2",
            "level": LEVEL,
            "least": self.least,
            "notes": list(self.notes),
            "steps": [row.to_dict() for row in self.steps],
            "rows": [row.to_dict() for row in self.rows],
            "unmatched": list(self.unmatched),
        }

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the steps side by side, and by how much each part grew.

        Args:
            path: A file to save the picture in, or None.

        Returns:
            The figure of matplotlib.

        Raises:
            ImportError: If matplotlib is not there.
        """
        return draw_comparison(self._pairs, self.rows, path)

    def _tables(self) -> Iterator[Table]:
        for step in self.steps:
            lines = [_cells(row) for row in self.rows if row.section == step.section]
            yield Table(
                f"{step.section}: by how much a step grew, the most first; a verdict needs more "
                f"than the 95 % interval and {100 * self.least:g} % of it (of a part, "
                f"{100 * _LEAST_OF_STEP:g} % of the step too)",
                _COLUMNS,
                [*lines, _cells(step)],
            )

    def __rich__(self) -> Any:
        return to_rich_table(list(self._tables()), self.notes)

    def __str__(self) -> str:
        return to_plain(list(self._tables()), self.notes)

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.rows)} rows, {len(self.changed)} of them changed>"


def _slower(one: Section, other: Section, same_clockwork: bool) -> float:
    """Return how many times slower the machine may have been in one profile than in the other."""
    if one.pace is None or other.pace is None or not same_clockwork:
        slower = max(one.slowness, other.slowness)
    else:
        slowest = max(section.pace_at_worst for section in (one, other))
        slower = slowest / min(one.pace, other.pace)
    return slower


def _notes(one: Section, other: Section, slower: float) -> Iterator[str]:
    for when, section in (("before", one), ("after", other)):
        if not section.step.blocks:
            yield (
                f"{one.name}: too short to tell: {section.steps} steps were measured {when}, and "
                f"it takes {LEAST_STEPS} (or so many rounds of updates) at least. Measure more."
            )
    if slower > 1 + TOLERANCE:
        yield (
            f"{one.name}: the machine may have been {slower:.2f} times slower at one time than at "
            "the other, and what that explains counts as noise. Measure again, or more steps. "
            f"{_SHARED}"
        )


def _advice(step: ComparedRow, noise: float, steps: int) -> str:
    """Say how many steps would do: the interval narrows with the root of their number."""
    times = (2 * noise / step.least) ** 2 if step.least else 4.0
    return (
        f"{step.section}: too noisy to tell whether the step grew or shrank by "
        f"{seconds_text(step.least)} or more. Measure about "
        f"{max(2, min(round(times), 100)) * steps} steps, both before and after. {_SHARED}"
    )


def _matched(before: Section, after: Section) -> Iterator[tuple[Row | None, Row | None]]:
    """Pair the parts of two steps: first those at the same place, then those of the same name."""
    left, right = list(before.parts), list(after.parts)
    for by in (attrgetter("kind", "name", "place"), attrgetter("kind", "name")):
        waiting = defaultdict[Any, deque[Row]](deque)
        for row in right:
            waiting[by(row)].append(row)
        alone = []
        for row in left:
            if waiting[by(row)]:
                yield row, waiting[by(row)].popleft()
            else:
                alone.append(row)
        unmatched = {id(row) for rows in waiting.values() for row in rows}
        left, right = alone, [row for row in right if id(row) in unmatched]
    yield from ((row, None) for row in left)
    yield from ((None, row) for row in right)


def _cells(row: ComparedRow) -> list[str]:
    return [
        row.title,
        row.kind,
        "-" if row.before is None else seconds_text(row.before),
        "-" if row.after is None else seconds_text(row.after),
        _signed(row.difference),
        "?" if row.noise is None else f"± {seconds_text(row.noise)}",
        seconds_text(row.least),
        row.verdict,
    ]


def _signed(seconds: float) -> str:
    return ("+" if seconds > 0 else "") + seconds_text(seconds)
