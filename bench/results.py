"""What a report is made of: what one or two interpreters measured, and the rows of its tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bench import peers
from bench.timing import Spread
from bench.worker import Measured
from bench.workloads import BY_NAME
from bench.workloads.workload import Goal

SUBJECT = "fastnet"


@dataclass
class Report:
    """Everything that was measured.

    Attributes:
        made: When, as ISO 8601.
        processor: Where.
        rounds: How many rounds each program had.
        round_ms: About how long a round of one program lasted, in milliseconds.
        environments: For each interpreter, what it measured. The first is the report's own; a
            second one is FastEstimator's.
        failures: For each environment, workloads whose process failed, and what it said.
    """

    made: str
    processor: str
    rounds: int
    round_ms: float
    environments: dict[str, list[Measured]] = field(default_factory=dict)
    failures: dict[str, dict[str, str]] = field(default_factory=dict)

    def versions(self) -> dict[str, dict[str, str]]:
        """Return the versions in each environment that measured anything."""
        return {name: found[0].versions for name, found in self.environments.items() if found}

    def find(self, workload: str) -> Iterator[tuple[str, Measured]]:
        """Yield what each environment measured of `workload`."""
        for environment, found in self.environments.items():
            for measured in found:
                if measured.workload == workload:
                    yield environment, measured

    def workloads(self) -> list[str]:
        """Return the workloads that were measured, in the order of the report."""
        return [name for name in BY_NAME if any(True for _ in self.find(name))]


@dataclass(frozen=True)
class Cell:
    """One peer beside one reference: how many times its cost, or the count itself.

    Attributes:
        value: The ratio, or the count.
        spread: The quartiles of the ratio, or None for a count.
        time_ns: What a step of the peer took, or None for a count.
        reference_ns: What a step of the reference took in the same process.
        environment: Where it was measured.
    """

    value: float
    spread: Spread | None
    time_ns: float | None
    reference_ns: float | None
    environment: str


@dataclass(frozen=True)
class Row:
    """One workload beside one reference.

    Attributes:
        workload: The workload's name.
        title: The workload's title.
        reference: The peer that others are compared with.
        counts: Whether the cells are counts.
        cells: The peers that have a number here.
        goal: What fastnet must reach, if anything.
    """

    workload: str
    title: str
    reference: str
    counts: bool
    cells: dict[str, Cell]
    goal: Goal | None

    @property
    def verdict(self) -> str:
        """Whether fastnet reaches the goal, and whether the rounds leave doubt, said plainly."""
        if self.goal is None:
            return "no goal"
        cell = self.cells.get(SUBJECT)
        if cell is None:
            return "not measured"
        verdict = "met" if cell.value <= self.goal.limit else "MISSED"
        if cell.spread is not None and cell.spread.low <= self.goal.limit < cell.spread.high:
            return f"{verdict}, close"
        return verdict


def rows(report: Report) -> list[Row]:
    """Return a row for each workload and each of its references."""
    made = []
    for name in report.workloads():
        workload = BY_NAME[name]
        for reference in workload.references:
            cells: dict[str, Cell] = {}
            for environment, measured in report.find(name):
                for peer in peers.ORDER:
                    cell = _cell(environment, measured, peer, reference)
                    # The report's own environment comes first, and its numbers stand.
                    if cell is not None and peer not in cells:
                        cells[peer] = cell
            cells = {peer: cells[peer] for peer in peers.ORDER if peer in cells}
            goal = workload.goals.get(reference)
            made.append(Row(name, workload.title, reference, workload.counts, cells, goal))
    return made


def _cell(environment: str, measured: Measured, peer: str, reference: str) -> Cell | None:
    """Return what one process says of `peer` beside `reference`, if anything."""
    if peer in measured.counts:
        return Cell(measured.counts[peer], None, None, None, environment)
    ratio = measured.ratios.get(peer, {}).get(reference)
    if ratio is None:
        return None
    return Cell(
        ratio["median"],
        Spread(**ratio),
        measured.times[peer]["median"],
        measured.times[reference]["median"],
        environment,
    )


def from_json(data: dict[str, Any]) -> Report:
    """Return the report that was saved as `data`."""
    environments = {
        name: [Measured(**measured) for measured in found]
        for name, found in data["environments"].items()
    }
    return Report(**{**data, "environments": environments})
