"""A part of a step in two profiles: what it took in each, and what is to be said of the change."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from fastnet.profiling.estimates import Estimate
from fastnet.profiling.rows import Row, key_title

__all__ = ["LEVEL", "NOISY", "ComparedRow"]

LEVEL = 0.95
NOISY = "too noisy"


@dataclass(frozen=True)
class ComparedRow:
    """A part of a step in two profiles. Times are in seconds a step.

    Attributes:
        name: What it is.
        kind: What sort of thing it is; "step" for the step itself.
        place: Its place, in the later profile if it is there.
        section: The section.
        before: What it typically took in the first profile, None where it is not there.
        after: What it typically took in the second one, None where it is not there.
        difference: By how much that grew.
        noise: How far the 95 % interval goes to either side of that, or None where there are too
            few steps to tell.
        least: The least change that has a verdict.
        chance: How likely so large a difference is where nothing has changed, or None.
        verdict: "grew" or "shrank" where the difference is beyond its noise, corrected for that
            there are many rows, and at least the least one; "new" or "gone" where one profile lacks
            it; "too noisy" where a change of the least size may be there, or not; else "".
    """

    name: str
    kind: str
    place: int | None
    section: str
    before: float | None
    after: float | None
    difference: float
    noise: float | None
    least: float
    chance: float | None
    verdict: str

    @classmethod
    def of(
        cls, before: Row | None, after: Row | None, least: float, at_least: float, slower: float
    ) -> ComparedRow:
        """Compare two rows, as yet with no word on growth.

        Args:
            before: The row of the first profile, or None.
            after: That of the second one, or None. One of them is there.
            least: The least change worth a verdict, as a part of what there was.
            at_least: The same in seconds; the larger of both counts.
            slower: How many times slower the machine may have been for one than for the other:
                what that explains is noise.
        """
        there = after or before
        assert there is not None
        first, second = (None if row is None else _typical(row) for row in (before, after))
        noise: float | None = None
        chance: float | None = None
        if all(row is None or row.blocks for row in (before, after)):
            change = _estimate(after) - _estimate(before)
            explained = (1 - 1 / slower) * max(first or 0.0, second or 0.0)
            noise = change.reach(LEVEL) + explained
            chance = replace(change, mean=max(abs(change.mean) - explained, 0.0)).chance()
        return cls(
            name=there.name,
            kind=there.kind,
            place=there.place,
            section=there.section,
            before=first,
            after=second,
            difference=(second or 0.0) - (first or 0.0),
            noise=noise,
            least=max(least * (first or 0.0), at_least),
            chance=chance,
            verdict="new" if before is None else "gone" if after is None else "",
        )

    def judged(self, chance: float | None) -> ComparedRow:
        """Return the row with its verdict.

        Args:
            chance: How likely so large a difference is by chance, among all that are looked at.
        """
        if self.verdict:
            return self
        large = abs(self.difference) >= self.least
        if chance is not None and chance < 1 - LEVEL and large:
            return replace(self, verdict="grew" if self.difference > 0 else "shrank")
        if self.noise is None or abs(self.difference) + self.noise > self.least:
            return replace(self, verdict=NOISY)
        return self

    @property
    def changed(self) -> bool:
        """Whether it grew, shrank, came or went."""
        return self.verdict not in ("", NOISY)

    @property
    def title(self) -> str:
        """The name, which says of a key where it goes."""
        return key_title(self.kind, self.name)

    def to_dict(self) -> dict[str, Any]:
        """Return the row as a dict of plain values."""
        return asdict(self)


def _estimate(row: Row | None) -> Estimate:
    """Estimate what a row takes; one that is not there takes nothing, for sure."""
    return Estimate(0.0, 0.0, 1.0) if row is None else Estimate.of(row.blocks)


def _typical(row: Row) -> float:
    return _estimate(row).mean if row.blocks else row.p50
