"""What a report is made of: what one or two interpreters measured, and the rows of its tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from bench import peers
from bench.timing import Spread
from bench.worker import Measured
from bench.workloads import BY_NAME
from bench.workloads.workload import Framework, Goal, Workload

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
        return {
            name: {key: value for measured in found for key, value in measured.versions.items()}
            for name, found in self.environments.items()
            if found
        }

    def find(self, workload: str) -> Iterator[tuple[str, Measured]]:
        """Yield what each environment measured of `workload`."""
        for environment, found in self.environments.items():
            for measured in found:
                if measured.workload == workload:
                    yield environment, measured

    def workloads(self) -> list[str]:
        """Return the workloads that were measured, in the order of the report."""
        return [name for name in BY_NAME if any(True for _ in self.find(name))]


Unit = Literal["ratio", "count", "ms", "ns an op", "us", "ns"]


@dataclass(frozen=True)
class Cell:
    """One peer beside one reference: how many times its cost, or what else was asked.

    Attributes:
        value: The ratio, the count, the milliseconds over a plain step, or the nanoseconds an op
            over it, or the microseconds over an op's calls, or the nanoseconds over a function's.
        spread: The quartiles of that, or None for a count.
        time_ns: What a step of the peer took, or None for a count.
        reference_ns: What a step of the reference took in the same process, or the plain step.
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
        unit: What the cells hold.
        cells: The peers that have a number here.
        goal: What fastnet must reach, if anything.
    """

    workload: str
    title: str
    reference: str
    unit: Unit
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


@dataclass(frozen=True)
class Section:
    """The rows that belong together: those of a framework, perhaps in one version.

    Attributes:
        framework: The framework.
        title: The framework, with versions where they matter.
        rows: The rows.
        costs: The rows that say what an op adds to a step.
        growth: The rows of workloads that grow, beside their baseline.
        dispatch: The rows that say what finding a function by a value's type costs.
    """

    framework: Framework
    title: str
    rows: list[Row]
    costs: list[Row]
    growth: list[Row]
    dispatch: list[Row]


def sections(report: Report) -> list[Section]:
    """Return the rows of PyTorch, and those of TensorFlow for each environment that has it.

    In PyTorch each number is from the first environment that has one, which are all of the same
    version. The environments' TensorFlow and Keras are of different generations, and stand apart.
    """
    found = {
        framework: [name for name in report.workloads() if BY_NAME[name].framework == framework]
        for framework in peers.BY_FRAMEWORK
    }
    made = []
    if found["torch"]:
        rows_of_all = _rows(report, found["torch"], list(report.environments))
        made.append(_section("torch", "PyTorch", rows_of_all))
    for environment in report.environments:
        rows_of_one = _rows(report, found["tf"], [environment])
        if any(row.cells for row in rows_of_one):
            made.append(_section("tf", _tensorflow(report, environment), rows_of_one))
    return made


def _section(framework: Framework, title: str, rows: list[Row]) -> Section:
    costs = [row for row in rows if row.unit == "us"]
    growth = [row for row in rows if BY_NAME[row.workload].grows]
    dispatch = [row for row in rows if row.unit == "ns"]
    others = [row for row in rows if row not in costs + growth + dispatch]
    return Section(framework, title, others, costs, growth, dispatch)


def rows(report: Report) -> list[Row]:
    """Return the rows of all sections."""
    return [
        row
        for section in sections(report)
        for row in section.rows + section.costs + section.growth + section.dispatch
    ]


def _tensorflow(report: Report, environment: str) -> str:
    """Return TensorFlow and Keras with the versions that an environment has."""
    versions = report.versions()[environment]
    number = versions.get("tensorflow-cpu") or versions.get("tensorflow", "")
    return f"TensorFlow {number}, Keras {versions.get('keras', '')}"


def _rows(report: Report, workloads: list[str], environments: list[str]) -> list[Row]:
    """Return a row for each workload and each of its references."""
    made = []
    for name in workloads:
        workload = BY_NAME[name]
        found = [pair for pair in report.find(name) if pair[0] in environments]
        if found and all(workload.baseline in measured.absent for _, measured in found):
            continue  # such as a fit with FastEstimator, where there is none
        for reference in workload.references:
            cells: dict[str, Cell] = {}
            for peer in peers.BY_FRAMEWORK[workload.framework]:
                for environment, measured in found:
                    cell = _cell(environment, measured, peer, reference, workload)
                    # The report's own environment comes first, and its numbers stand.
                    if cell is not None and peer not in cells:
                        cells[peer] = cell
            goal = workload.goals.get(reference)
            made.append(Row(name, workload.title, reference, _unit(workload), cells, goal))
    return made


_NANOSECONDS: dict[Unit, float] = {"ms": 1e6, "ns an op": 1.0, "us": 1e3, "ns": 1.0}


def _unit(workload: Workload) -> Unit:
    if workload.counts:
        return "count"
    if workload.over_calls:
        return "ns" if workload.finds_functions else "us"
    if workload.over_a_step:
        return "ms" if workload.ops_measured is None else "ns an op"
    return "ratio"


def _cell(
    environment: str, measured: Measured, peer: str, reference: str, workload: Workload
) -> Cell | None:
    """Return what one process says of `peer` beside `reference`, if anything."""
    if peer in measured.counts:
        return Cell(measured.counts[peer], None, None, None, environment)
    if peer in measured.excesses:
        excess = measured.excesses[peer]
        scale = _NANOSECONDS[_unit(workload)] * (workload.ops_measured or 1)
        spread = Spread(*(excess[key] / scale for key in ("median", "low", "high")))
        time = measured.times[peer]["median"]
        value = excess["least"] / scale if "least" in excess else spread.median
        return Cell(value, spread, time, excess["step"], environment)
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
