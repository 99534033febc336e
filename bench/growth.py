"""How a step's cost grows with ops, nesting, keys and minibatches: what tables and plots show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from bench import peers
from bench.results import Row, Section
from bench.workloads import BY_NAME


@dataclass(frozen=True)
class Line:
    """One peer's cost at each size.

    Attributes:
        peer: The peer.
        ratios: The ratio to the baseline at each size, timed in one process.
        times_ns: That ratio times the baseline's time, in nanoseconds: processes are not equally
            fast, so that a peer's own time from another process would not compare.
    """

    peer: str
    ratios: dict[int, float]
    times_ns: dict[int, float]

    @property
    def each_more(self) -> float | None:
        """What one more adds, in nanoseconds."""
        return each_more(self.times_ns)


@dataclass(frozen=True)
class Group:
    """The workloads that differ in one number only, in one section.

    Attributes:
        name: How the group is called on a command line.
        section: The section's title.
        what: What grows.
        sizes: How far, from the least.
        reference: The peer that others are compared with.
        baseline_ns: Its time at each size, in nanoseconds.
        lines: The other peers that were measured, in the order of the report.
    """

    name: str
    section: str
    what: str
    sizes: list[int]
    reference: str
    baseline_ns: dict[int, float]
    lines: list[Line]

    @property
    def baseline(self) -> str:
        """How the report calls the reference."""
        return peers.title(self.reference)


def groups(section: Section) -> Iterator[Group]:
    """Yield what grows in a section, beside the baseline of each workload."""
    rows = [row for row in section.growth if row.reference == BY_NAME[row.workload].baseline]
    for name, found in groupby(rows, lambda row: BY_NAME[row.workload].group or row.workload):
        measured = [row for row in found if row.reference in row.cells]
        if measured:
            yield _group(name, section, measured)


def _group(name: str, section: Section, rows: list[Row]) -> Group:
    reference = rows[0].reference
    own = {_size(row): row.cells[reference].time_ns or 0.0 for row in rows}
    lines = []
    for peer in peers.BY_FRAMEWORK[section.framework]:
        ratios = {_size(row): row.cells[peer].value for row in rows if peer in row.cells}
        if ratios and peer != reference:
            times = {size: ratio * own[size] for size, ratio in ratios.items()}
            lines.append(Line(peer, ratios, times))
    what = BY_NAME[rows[0].workload].grows or ""
    return Group(name, section.title, what, sorted(own), reference, own, lines)


def _size(row: Row) -> int:
    return BY_NAME[row.workload].size


def each_more(times_ns: dict[int, float]) -> float | None:
    """Return what one more adds, from the least and the most: None of a single size.

    Example:
        >>> each_more({1: 100.0, 10: 200.0, 101: 1100.0})
        10.0
    """
    least, most = min(times_ns), max(times_ns)
    return None if least == most else (times_ns[most] - times_ns[least]) / (most - least)
