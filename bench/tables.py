"""Tables of a report: as Markdown, or in color for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench import growth, peers
from bench.results import SUBJECT, Cell, Report, Row, Section, sections
from bench.workloads import BY_NAME

if TYPE_CHECKING:
    from rich.console import RenderableType

_NONE = "-"


@dataclass(frozen=True)
class Table:
    """A title, a note, the columns' names, and rows of text; the first columns are left-aligned."""

    title: str
    note: str
    columns: list[str]
    rows: list[list[str]]
    left: int = 2

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        rule = ["---" if index < self.left else "---:" for index in range(len(self.columns))]
        lines = [f"## {self.title}", "", self.note, ""] if self.note else [f"## {self.title}", ""]
        lines += [f"| {' | '.join(cells)} |" for cells in (self.columns, rule, *self.rows)]
        return "\n".join(lines)

    def to_rich(self) -> RenderableType:
        """Return the table as something that rich prints."""
        from rich import box
        from rich.table import Table as RichTable

        table = RichTable(title=self.title, caption=self.note, box=box.SIMPLE, title_justify="left")
        for index, column in enumerate(self.columns):
            table.add_column(column, justify="left" if index < self.left else "right")
        for cells in self.rows:
            table.add_row(*[_colored(cell) for cell in cells])
        return table


def _colored(text: str) -> str:
    for start, style in (("met", "green"), ("MISSED", "bold red")):
        if text.startswith(start):
            return f"[{style}]{text}[/]"
    return text


def microseconds(nanoseconds: float | None) -> str:
    """Return a time in microseconds, to three digits or so.

    Example:
        >>> microseconds(1234.5), microseconds(123456.0)
        ('1.23', '123')
    """
    if nanoseconds is None:
        return _NONE
    value = nanoseconds / 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ratio(value: float) -> str:
    """Return a ratio, to the hundredth where that matters.

    Example:
        >>> ratio(1.034), ratio(18.54), ratio(0.0061), ratio(131.2)
        ('1.03', '18.5', '0.0061', '131')
    """
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def _number(row: Row, value: float) -> str:
    """Return a value of a row's cells, to the digits that matter in the row's unit."""
    if row.unit in ("count", "ns", "ns an op"):
        return f"{value:.0f}"
    return f"{value:.1f}" if row.unit == "us" else ratio(value)


def shown(row: Row, value: float) -> str:
    """Return a value of a row's cells, with the row's unit where a table's rows differ in it."""
    return _number(row, value) + {"ms": " ms", "ns an op": " ns"}.get(row.unit, "")


def _value(row: Row, cell: Cell | None) -> str:
    return _NONE if cell is None else shown(row, cell.value)


def _beside(row: Row) -> str:
    if row.unit == "ratio":
        return peers.title(row.reference)
    return "count" if row.unit == "count" else "a plain step"


def goals_table(section: Section) -> Table:
    """Return fastnet beside its goals."""
    made = []
    for row in section.rows:
        cell = row.cells.get(SUBJECT)
        spread = cell.spread if cell else None
        goal = row.goal
        made.append(
            [
                row.title,
                _beside(row),
                microseconds(cell.reference_ns if cell else None),
                microseconds(cell.time_ns if cell else None),
                _value(row, cell),
                f"{_number(row, spread.low)} to {_number(row, spread.high)}" if spread else _NONE,
                f"{goal.limit:g}" if goal else _NONE,
                row.verdict,
            ]
        )
    return Table(
        title=f"{section.title}: fastnet and its goals",
        note="Medians. The spread is the middle half of the rounds' ratios; `close` says that the "
        f"goal lies within it. Less is better.{_units(section)}",
        columns=["work", "beside", "that, µs", "fastnet, µs", "ratio", "spread", "goal", "verdict"],
        rows=made,
    )


def peers_table(section: Section) -> Table:
    """Return the ratios of every peer that has a number anywhere."""
    known = {name for row in section.rows for name in row.cells}
    names = [name for name in peers.BY_FRAMEWORK[section.framework] if name in known]
    made = []
    for row in section.rows:
        cells = [_value(row, row.cells.get(name)) for name in names]
        was = row.goal.fastestimator if row.goal and row.reference != "fastestimator" else None
        recorded = _NONE if was is None else shown(row, was)
        made.append([row.title, _beside(row), *cells, recorded])
    return Table(
        title=f"{section.title}: fastnet and its peers",
        note=f"Ratio to what stands under `beside`, timed in the same process; {_NONE}: no such "
        "thing, or not measured. Last column: FastEstimator 1.7.0 when the goals were set."
        f"{_units(section)}",
        columns=["work", "beside", *[peers.title(name) for name in names], "(FE, then)"],
        rows=made,
    )


def costs_table(section: Section) -> Table:
    """Return what each op adds to a step, in fastnet and in FastEstimator."""
    others = [
        name
        for name in peers.BY_FRAMEWORK[section.framework]
        if name != SUBJECT and any(name in row.cells for row in section.costs)
    ]
    others = [name for name in others if name not in peers.BASELINES]
    made = []
    for row in section.costs:
        cell = row.cells.get(SUBJECT)
        spread = cell.spread if cell else None
        made.append(
            [
                row.title,
                microseconds(cell.reference_ns if cell else None),
                microseconds(cell.time_ns if cell else None),
                _value(row, cell),
                f"{spread.low:.1f} to {spread.high:.1f}" if spread else _NONE,
                f"{row.goal.limit:g}" if row.goal else _NONE,
                row.verdict,
                *[_value(row, row.cells.get(name)) for name in others],
            ]
        )
    return Table(
        title=f"{section.title}: what an op adds",
        note="Microseconds. By hand: the calls of the framework that the op's value needs. Adds: "
        "how much longer a step of a network of this op is, once that of a network of an op that "
        "does nothing is taken off, or of the ops that it needs. In a graph nothing is taken off, "
        "and the calls are one concrete function. By hand and adds are of the shortest rounds, in "
        "TensorFlow of the quiet ones of single steps that the programs took in turn; the spread "
        "is the middle half of the rounds' differences.",
        columns=[
            "op",
            "by hand",
            "fastnet's step",
            "adds",
            "spread",
            "goal",
            "verdict",
            *[f"{peers.title(name)} adds" for name in others],
        ],
        rows=made,
        left=1,
    )


def dispatch_table(section: Section) -> Table:
    """Return what a function costs that finds the framework's function by a value's type."""
    names = [
        name
        for name in peers.BY_FRAMEWORK[section.framework]
        if name not in peers.BASELINES and any(name in row.cells for row in section.dispatch)
    ]
    made = []
    for row in section.dispatch:
        cells = [row.cells.get(name) for name in names]
        by_hand = next((cell.reference_ns for cell in cells if cell), None)
        shown_cells = []
        for cell in cells:
            spread = cell.spread if cell else None
            shown_cells += [
                _value(row, cell),
                f"{spread.low:.0f} to {spread.high:.0f}" if spread else _NONE,
            ]
        made.append([row.title, _NONE if by_hand is None else f"{by_hand:.0f}", *shown_cells])
    titles = [peers.title(name) for name in names]
    return Table(
        title=f"{section.title}: what finding a function by a value's type adds",
        note="Nanoseconds. By hand: the framework's own function, called with the same values. "
        "Adds: how much longer the backend's function takes, of the shortest rounds; the spread is "
        "the middle half of the rounds' differences. What it does besides finding the function, "
        "such as reading a type's name, counts. Of each package in its own environment, if it has "
        "one; by hand is in the first.",
        columns=[
            "function",
            "by hand",
            *[text for title in titles for text in (f"{title} adds", "spread")],
        ],
        rows=made,
        left=1,
    )


def growth_table(group: growth.Group) -> Table:
    """Return how a step's cost grows with one thing, for each peer."""
    names = [peers.title(line.peer) for line in group.lines]
    made = [
        [
            f"{size:,}",
            microseconds(group.baseline_ns[size]),
            *[
                _NONE if size not in line.ratios else ratio(line.ratios[size])
                for line in group.lines
            ],
        ]
        for size in group.sizes
    ]
    own, *more = [growth.each_more(group.baseline_ns), *[line.each_more for line in group.lines]]
    made.append(["one more, µs", microseconds(own), *[microseconds(value) for value in more]])
    return Table(
        title=f"{group.section}: growth with {group.what}",
        note=f"The {group.baseline} in microseconds, and ratios to it, timed in the same process. "
        "Last row: what one more adds, in microseconds, from the two ends of each column.",
        columns=["", group.baseline, *names],
        rows=made,
        left=1,
    )


_OVER_A_STEP = {
    "ms": "by how many milliseconds it takes longer",
    "ns an op": "by how many nanoseconds for each of its ops it takes longer",
}


def _units(section: Section) -> str:
    units = {row.unit for row in section.rows}
    told = [text for unit, text in _OVER_A_STEP.items() if unit in units]
    return f" Beside a plain step: {', or '.join(told)}." if told else ""


def times_table(report: Report) -> Table:
    """Return every time that was measured, with its quartiles."""
    made = []
    for name in report.workloads():
        for environment, measured in report.find(name):
            for peer, time in measured.times.items():
                made.append(
                    [
                        name,
                        peers.title(peer),
                        environment,
                        microseconds(time["median"]),
                        microseconds(time["low"]),
                        microseconds(time["high"]),
                        f"{time['loops']:.0f}",
                    ]
                )
    return Table(
        title="Times",
        note="Microseconds a step: median and quartiles of the rounds, and calls a round.",
        columns=["work", "peer", "environment", "median", "quarter", "three quarters", "calls"],
        rows=made,
        left=3,
    )


def remarks(report: Report) -> Iterator[str]:
    """Yield what a reader should know besides: where, how, with which versions, and what failed."""
    yield f"Measured {report.made} on {report.processor}, one thread, "
    yield f"{report.rounds} interleaved rounds of about {report.round_ms:g} ms for each program."
    for environment, found in report.versions().items():
        listed = ", ".join(f"{name} {version}" for name, version in found.items())
        yield f"\n- {environment}: {listed}"
    seen = set()
    for environment, workloads in report.environments.items():
        for measured in workloads:
            for peer, reason in measured.failures.items():
                if (environment, peer, reason) not in seen:
                    seen.add((environment, peer, reason))
                    name = peers.title(peer)
                    yield f"\n- FAILED: {name} at {measured.workload} ({environment}): {reason}"
        for workload, reason in report.failures.get(environment, {}).items():
            yield f"\n- FAILED: {workload} ({environment}): {reason}"
    if absent := _absent(report):
        yield f"\n- Not installed, so not measured: {', '.join(absent)}."


def _absent(report: Report) -> list[str]:
    """Return the peers that no process of the report has found."""
    missing, found = set(), set()
    for measured in (one for many in report.environments.values() for one in many):
        missing |= set(measured.absent)
        framework = BY_NAME[measured.workload].framework
        found |= set(peers.BY_FRAMEWORK[framework]) - set(measured.absent)
    return sorted(missing - found)


def to_markdown(report: Report) -> str:
    """Return the whole report as Markdown."""
    parts = ["# What a step costs", "".join(remarks(report))]
    parts += [table.to_markdown() for table in all_tables(report)]
    parts.append(times_table(report).to_markdown())
    return "\n\n".join(parts) + "\n"


def all_tables(report: Report) -> Iterator[Table]:
    """Yield the tables of each section."""
    for section in sections(report):
        if section.rows:
            yield goals_table(section)
            yield peers_table(section)
        if section.costs:
            yield costs_table(section)
        if section.dispatch:
            yield dispatch_table(section)
        for group in growth.groups(section):
            yield growth_table(group)


def show(report: Report) -> None:
    """Print the report's tables in color where the terminal has it."""
    from rich.console import Console

    # A pipe has no width of its own: tables that wrap are no use there.
    console: Any = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print("".join(remarks(report)), markup=False, highlight=False)
    for table in all_tables(report):
        console.print(table.to_rich())
