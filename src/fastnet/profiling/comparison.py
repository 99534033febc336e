"""Two profiles side by side: which parts of a step changed, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import hypot
from pathlib import Path
from typing import Any

from fastnet.profiling.plot import draw_comparison
from fastnet.profiling.rows import Row, Section, key_title
from fastnet.profiling.table import Table, seconds_text, to_plain, to_rich_table

__all__ = ["ComparedRow", "Comparison"]

# so many standard errors are no chance, even where a table has dozens of rows
_SURE = 3.0
_COLUMNS = ("", "kind", "before", "after", "change", "noise", "median", "verdict")


@dataclass(frozen=True)
class ComparedRow:
    """A part of a step in two profiles. Times are in seconds a step.

    Attributes:
        name: What it is.
        kind: What sort of thing it is; "step" for the step itself.
        place: Its place, in the later profile if it is there.
        section: The section.
        before: The mean in the first profile, None where it is not there.
        after: The mean in the second one, None where it is not there.
        difference: By how much the mean grew.
        noise: Three standard errors of that, or None where there are too few steps to tell.
        p50_difference: By how much the median grew.
        p50_noise: Three standard errors of that, or None.
        verdict: "grew" or "shrank" where the mean or the median changed by more than its noise, and
            the other in the same direction; "new" or "gone" where one profile lacks it; else "".
    """

    name: str
    kind: str
    place: int | None
    section: str
    before: float | None
    after: float | None
    difference: float
    noise: float | None
    p50_difference: float
    p50_noise: float | None
    verdict: str

    @classmethod
    def of(cls, before: Row | None, after: Row | None) -> ComparedRow:
        """Compare two rows.

        Args:
            before: The row of the first profile, or None.
            after: That of the second one, or None. One of them is there.
        """
        there = after or before
        assert there is not None
        mean = _change(before, after, "mean", "error")
        median = _change(before, after, "p50", "p50_error")
        verdict = "new" if before is None else "gone" if after is None else ""
        if not verdict and any(
            noise is not None and abs(difference) > noise for difference, noise in (mean, median)
        ):
            # a mean and a median that differ in their direction tell nothing
            verdict = {(1, 1): "grew", (-1, -1): "shrank"}.get((_sign(mean), _sign(median)), "")
        return cls(
            name=there.name,
            kind=there.kind,
            place=there.place,
            section=there.section,
            before=None if before is None else before.mean,
            after=None if after is None else after.mean,
            difference=mean[0],
            noise=mean[1],
            p50_difference=median[0],
            p50_noise=median[1],
            verdict=verdict,
        )

    @property
    def title(self) -> str:
        """The name, which says of a key where it goes."""
        return key_title(self.kind, self.name)

    def to_dict(self) -> dict[str, Any]:
        """Give the row as a dict of plain values."""
        return asdict(self)


def _change(
    before: Row | None, after: Row | None, value: str, error: str
) -> tuple[float, float | None]:
    difference = sum(
        sign * getattr(row, value) for sign, row in ((-1, before), (1, after)) if row is not None
    )
    errors = [getattr(row, error) for row in (before, after) if row is not None]
    return difference, None if None in errors else _SURE * hypot(*errors)


def _sign(change: tuple[float, float | None]) -> int:
    return 1 if change[0] >= 0 else -1


class Comparison:
    """What changed from one profile to another.

    Attributes:
        steps: The steps of each section that both have.
        rows: Their parts, those that grew most first.
        unmatched: The names of the sections that only one of them has.
    """

    def __init__(
        self,
        steps: tuple[ComparedRow, ...],
        rows: tuple[ComparedRow, ...],
        unmatched: tuple[str, ...],
        pairs: tuple[tuple[Section, Section], ...],
    ) -> None:
        self.steps = steps
        self.rows = rows
        self.unmatched = unmatched
        self._pairs = pairs

    @classmethod
    def of(cls, before: Sequence[Section], after: Sequence[Section]) -> Comparison:
        """Compare the sections of two profiles by their names.

        Args:
            before: Those of the first.
            after: Those of the second.

        Raises:
            ValueError: If they have none in common.
        """
        first = {section.name: section for section in before}
        second = {section.name: section for section in after}
        names = [name for name in first if name in second]
        if not names:
            raise ValueError(
                f"These profiles have nothing to compare: one is of {sorted(first) or 'no steps'}, "
                f"the other of {sorted(second) or 'no steps'}."
            )
        pairs = tuple((first[name], second[name]) for name in names)
        rows = [ComparedRow.of(*rows) for pair in pairs for rows in _matched(*pair)]
        rows.sort(key=lambda row: -row.difference)
        steps = tuple(ComparedRow.of(one.step, other.step) for one, other in pairs)
        return cls(steps, tuple(rows), tuple(sorted(first.keys() ^ second.keys())), pairs)

    @property
    def changed(self) -> tuple[ComparedRow, ...]:
        """The rows that changed beyond the noise, or are in one profile only."""
        return tuple(row for row in self.rows if row.verdict)

    def to_dict(self) -> dict[str, Any]:
        """Give the comparison as a dict of plain values; times are in seconds."""
        return {
            "schema": "fastnet.comparison/1",
            "standard_errors": _SURE,
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
                f"{step.section}: by how much a step grew, the most first; noise is three "
                "standard errors",
                _COLUMNS,
                [*lines, _cells(step)],
            )

    def __rich__(self) -> Any:
        return to_rich_table(list(self._tables()))

    def __str__(self) -> str:
        return to_plain(list(self._tables()))

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.rows)} rows, {len(self.changed)} of them changed>"


def _matched(before: Section, after: Section) -> Iterator[tuple[Row | None, Row | None]]:
    """Pair the parts of two steps: first those at the same place, then those of the same name."""
    left, right = list(before.parts), list(after.parts)
    for by in (("kind", "name", "place"), ("kind", "name")):
        for row in list(left):
            for other in right:
                if all(getattr(row, name) == getattr(other, name) for name in by):
                    left.remove(row)
                    right.remove(other)
                    yield row, other
                    break
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
        _signed(row.p50_difference),
        row.verdict,
    ]


def _signed(seconds: float) -> str:
    return ("+" if seconds > 0 else "") + seconds_text(seconds)
