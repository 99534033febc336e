"""A report of measurements, and the rows of its tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench import peers
from bench.measure import Measured
from bench.timing import Spread
from bench.workloads import BY_NAME
from bench.workloads.workload import Framework, Goal, Unit, Workload

SUBJECT = "fastnet"
# Nanoseconds of one of a unit.
_NANOSECONDS: dict[Unit, float] = {"ms": 1e6, "ns an op": 1.0, "us": 1e3}


@dataclass
class Report:
    """All measurements, by interpreter: the report\'s own, then FastEstimator\'s.

    `failures` has the workloads whose process failed, with its message.
    """

    made: str
    processor: str
    rounds: int
    round_ms: float
    environments: dict[str, list[Measured]] = field(default_factory=dict)
    failures: dict[str, dict[str, str]] = field(default_factory=dict)
    threads: int = 1

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Report:
        """Return a report that was saved."""
        environments = {
            name: [Measured(**measured) for measured in found]
            for name, found in data["environments"].items()
        }
        return cls(**{**data, "environments": environments})

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)

    def versions(self) -> dict[str, dict[str, str]]:
        """Return the versions in each environment that measured anything."""
        return {
            name: {key: value for measured in found for key, value in measured.versions.items()}
            for name, found in self.environments.items()
            if found
        }

    def find(self, workload: str) -> Iterator[tuple[str, Measured]]:
        """Yield the measurements of `workload`, with their environments."""
        for environment, found in self.environments.items():
            for measured in found:
                if measured.workload == workload:
                    yield environment, measured

    def workloads(self) -> list[str]:
        """Return the workloads that were measured, in the order of the tables."""
        return [name for name in BY_NAME if any(True for _ in self.find(name))]

    def failed(self) -> list[str]:
        """Return a line for each failure."""
        lines = []
        for environment, workloads in self.environments.items():
            for measured in workloads:
                for peer, reason in measured.failures.items():
                    where = f"{peers.title(peer)} at {measured.workload} ({environment})"
                    lines.append(f"failed: {where}: {reason}")
        for environment, failures in self.failures.items():
            lines += [f"failed: {name} ({environment}): {why}" for name, why in failures.items()]
        return lines


@dataclass(frozen=True)
class Cell:
    """One peer beside one reference; `reference_ns` is a plain step or the calls for an excess."""

    value: float
    spread: Spread | None
    time_ns: float | None
    reference_ns: float | None


@dataclass(frozen=True)
class Row:
    """One workload beside one reference, with a cell for each peer that was measured."""

    workload: Workload
    reference: str
    cells: dict[str, Cell]

    @property
    def unit(self) -> Unit:
        """The unit of the cells."""
        return self.workload.unit

    @property
    def goal(self) -> Goal | None:
        """The goal of fastnet."""
        return self.workload.goals.get(self.reference)

    @property
    def beside(self) -> str:
        """The full name of what the cells are compared with."""
        if self.unit == "ratio" or self.unit == "us":
            return peers.title(self.reference)
        return "count" if self.unit == "count" else "a plain step"

    @property
    def verdict(self) -> str:
        """Whether fastnet reaches the goal, and whether the spread leaves doubt."""
        if self.goal is None:
            return "no goal"
        cell = self.cells.get(SUBJECT)
        if cell is None:
            return "not measured"
        verdict = "met" if cell.value <= self.goal.limit else "missed"
        if cell.spread is not None and cell.spread.low <= self.goal.limit < cell.spread.high:
            return f"{verdict}, close"
        return verdict


@dataclass(frozen=True)
class Section:
    """The rows of a framework, perhaps in one version: of steps, of ops, and of growth."""

    framework: Framework
    title: str
    rows: list[Row]
    costs: list[Row]
    growth: list[Growth]


@dataclass(frozen=True)
class Growth:
    """A group of workloads that differ in one quantity, `what`, with values by size."""

    name: str
    section: str
    what: str
    reference: str
    baseline_ns: dict[int, float]
    ratios: dict[str, dict[int, float]]

    @property
    def sizes(self) -> list[int]:
        """The sizes, from the least."""
        return sorted(self.baseline_ns)

    def times_ns(self, peer: str) -> dict[int, float]:
        """Return the times of a peer, by size: its ratio times the time of the baseline.

        Processes differ in speed, so a peer's own time in another process would not compare.
        """
        ratios = self.ratios.get(peer, dict.fromkeys(self.baseline_ns, 1.0))
        return {size: ratio * self.baseline_ns[size] for size, ratio in ratios.items()}


def slope(times_ns: Mapping[int, float]) -> float | None:
    """Return the time that one more adds, from the least and the most; None for a single size.

    Example:
        >>> slope({1: 100.0, 10: 200.0, 101: 1100.0})
        10.0
    """
    least, most = min(times_ns), max(times_ns)
    return None if least == most else (times_ns[most] - times_ns[least]) / (most - least)


def sections(report: Report) -> list[Section]:
    """Return the rows of PyTorch, and those of TensorFlow for each environment that has it.

    In PyTorch each number is of the first environment that has one. The TensorFlow and Keras of the
    environments are of different generations, and have sections of their own.
    """
    names = report.workloads()
    made = []
    rows = _rows(report, [name for name in names if BY_NAME[name].framework == "torch"])
    if rows:
        made.append(_section("torch", "PyTorch", rows))
    for environment in report.environments:
        tf_names = [name for name in names if BY_NAME[name].framework == "tf"]
        rows = _rows(report, tf_names, environment)
        if any(row.cells for row in rows):
            versions = report.versions()[environment]
            number = versions.get("tensorflow-cpu") or versions.get("tensorflow", "")
            title = f"TensorFlow {number}, Keras {versions.get('keras', '')}"
            made.append(_section("tf", title, rows))
    return made


def _section(framework: Framework, title: str, rows: list[Row]) -> Section:
    costs = [row for row in rows if row.unit == "us"]
    growing: dict[str, list[Row]] = {}
    for row in rows:
        baseline = row.reference == row.workload.baseline
        if row.workload.grows and baseline and row.reference in row.cells:
            growing.setdefault(str(row.workload.group), []).append(row)
    growth = [_growth(name, title, found) for name, found in growing.items()]
    others = [row for row in rows if row not in costs and not row.workload.grows]
    return Section(framework, title, others, costs, growth)


def _growth(name: str, title: str, rows: Sequence[Row]) -> Growth:
    first = rows[0]
    ratios = {
        peer: {row.workload.size: row.cells[peer].value for row in rows if peer in row.cells}
        for peer in peers.BY_FRAMEWORK[first.workload.framework]
        if peer != first.reference
    }
    return Growth(
        name,
        title,
        str(first.workload.grows),
        first.reference,
        {row.workload.size: row.cells[first.reference].time_ns or 0.0 for row in rows},
        {peer: found for peer, found in ratios.items() if found},
    )


def _rows(report: Report, names: Sequence[str], environment: str | None = None) -> list[Row]:
    """Return a row for each workload and each of its references."""
    made = []
    for name in names:
        workload = BY_NAME[name]
        found = [pair for pair in report.find(name) if environment in (None, pair[0])]
        if found and all(workload.baseline in measured.absent for _, measured in found):
            continue  # such as a fit with FastEstimator, where it is not installed
        for reference in workload.references:
            cells: dict[str, Cell] = {}
            for peer in peers.BY_FRAMEWORK[workload.framework]:
                for _, measured in found:
                    cell = _cell(measured, peer, reference, workload)
                    if cell is not None:
                        cells.setdefault(peer, cell)
            made.append(Row(workload, reference, cells))
    return made


def _cell(measured: Measured, peer: str, reference: str, workload: Workload) -> Cell | None:
    """Return the measurement of `peer` beside `reference` in one process, if there is one."""
    if peer in measured.counts:
        return Cell(measured.counts[peer], None, None, None)
    if peer in measured.excesses:
        excess = measured.excesses[peer]
        scale = _NANOSECONDS[workload.unit]
        if workload.unit == "ns an op":
            scale *= workload.size
        spread = Spread(*(excess[key] / scale for key in ("median", "low", "high")))
        value = excess["least"] / scale if "least" in excess else spread.median
        return Cell(value, spread, measured.times[peer]["median"], excess["step"])
    ratio = measured.ratios.get(peer, {}).get(reference)
    if ratio is None:
        return None
    own, other = (measured.times[one]["median"] for one in (peer, reference))
    return Cell(ratio["median"], Spread(**ratio), own, other)
