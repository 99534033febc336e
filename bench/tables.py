"""The tables of a report, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bench import peers
from bench.results import SUBJECT, Cell, Growth, Report, Row, Section, sections, slope
from bench.workloads import BY_NAME

_NONE = "-"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], left: int = 2) -> str:
    """Return a table in Markdown, whose first `left` columns are left-aligned."""
    rule = ["---" if index < left else "---:" for index in range(len(columns))]
    lines = [columns, rule, *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def microseconds(nanoseconds: float | None) -> str:
    """Return a time in microseconds with three digits.

    Example:
        >>> microseconds(1234.5), microseconds(123456.0)
        ('1.23', '123')
    """
    if nanoseconds is None:
        return _NONE
    value = nanoseconds / 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ratio(value: float) -> str:
    """Return a ratio with the digits that matter.

    Example:
        >>> ratio(1.034), ratio(18.54), ratio(0.0061), ratio(131.2)
        ('1.03', '18.5', '0.0061', '131')
    """
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def number(row: Row, value: float) -> str:
    """Return a value of a row without its unit."""
    if row.unit in ("count", "ns an op"):
        return f"{value:.0f}"
    return f"{value:.1f}" if row.unit == "us" else ratio(value)


def with_unit(row: Row, value: float) -> str:
    """Return a value of a row with its unit, where the rows of a table differ in it."""
    return number(row, value) + {"ms": " ms", "ns an op": " ns"}.get(row.unit, "")


def _cell(row: Row, cell: Cell | None) -> str:
    return _NONE if cell is None else with_unit(row, cell.value)


def _judged(row: Row) -> list[str]:
    """Return the times of the reference and of fastnet, its value, and the verdict on it."""
    cell = row.cells.get(SUBJECT)
    spread = cell.spread if cell else None
    return [
        microseconds(cell.reference_ns if cell else None),
        microseconds(cell.time_ns if cell else None),
        _cell(row, cell),
        f"{number(row, spread.low)} to {number(row, spread.high)}" if spread else _NONE,
        f"{row.goal.limit:.3g}" if row.goal else _NONE,
        row.verdict,
    ]


_UNITS = (
    " Beside a plain step: the milliseconds, or the nanoseconds for each of its ops, by which it "
    "takes longer."
)


def _units(section: Section) -> str:
    return _UNITS if {"ms", "ns an op"} & {row.unit for row in section.rows} else ""


def goals_table(section: Section) -> str:
    """Return fastnet beside its goals."""
    columns = ["work", "beside", "beside, µs", "fastnet, µs", "ratio", "quartiles", "goal"]
    rows = [[row.workload.title, row.beside, *_judged(row)] for row in section.rows]
    return (
        f"## {section.title}: fastnet and its goals\n\nMedians and quartiles of the rounds' "
        "ratios; `close` means that the goal lies between the quartiles. Less is better."
        f"{_units(section)}\n\n{markdown_table([*columns, 'verdict'], rows)}"
    )


def peers_table(section: Section) -> str:
    """Return the ratios of every peer that was measured."""
    measured = {name for row in section.rows for name in row.cells}
    names = [name for name in peers.BY_FRAMEWORK[section.framework] if name in measured]
    rows = []
    for row in section.rows:
        was = row.goal.fastestimator if row.goal and row.reference != "fastestimator" else None
        cells = [_cell(row, row.cells.get(name)) for name in names]
        recorded = _NONE if was is None else with_unit(row, was)
        rows.append([row.workload.title, row.beside, *cells, recorded])
    columns = ["work", "beside", *map(peers.title, names), "FastEstimator 1.7.0, earlier"]
    return (
        f"## {section.title}: fastnet and its peers\n\nRatios to the program under `beside`, timed "
        f"in the same process; {_NONE}: no such feature, or not measured. Last column: when the "
        f"goals were set.{_units(section)}\n\n{markdown_table(columns, rows)}"
    )


def costs_table(section: Section) -> str:
    """Return the overhead that each op adds to a step, of fastnet and FastEstimator."""
    rows = [
        [row.workload.title, *_judged(row), _cell(row, row.cells.get("fastestimator"))]
        for row in section.costs
    ]
    columns = ["op", "hand-written calls", "fastnet's step", "the op adds", "quartiles", "goal"]
    columns += ["verdict", "FastEstimator adds"]
    return (
        f"## {section.title}: overhead of each op\n\nMicroseconds. Hand-written calls: the calls "
        "of the framework that the op's value needs. The op adds: the time of a step of a network "
        "of this op beyond these calls, without that of a network of an op that does nothing, or "
        "of the ops that it needs. In a graph nothing is subtracted, and the calls are a concrete "
        "function. Both are of the shortest rounds; the quartiles are those of the rounds' "
        f"differences.\n\n{markdown_table(columns, rows, left=1)}"
    )


def growth_table(group: Growth) -> str:
    """Return how the time of a step grows with one quantity, for each peer."""
    baseline = peers.title(group.reference)
    rows = [
        [f"{size:,}", microseconds(group.baseline_ns[size])]
        + [ratio(one[size]) if size in one else _NONE for one in group.ratios.values()]
        for size in group.sizes
    ]
    slopes = [slope(group.times_ns(peer)) for peer in (group.reference, *group.ratios)]
    rows.append(["one more, µs", *map(microseconds, slopes)])
    columns = [group.what, f"{baseline}, µs", *map(peers.title, group.ratios)]
    return (
        f"## {group.section}: growth with {group.what}\n\nThe {baseline} in microseconds, and "
        "ratios to it, timed in the same process. Last row: the microseconds that one more adds, "
        f"from the first and the last row.\n\n{markdown_table(columns, rows, left=1)}"
    )


def times_table(report: Report) -> str:
    """Return every time that was measured, with its quartiles."""
    rows = [
        [name, peers.title(peer), environment]
        + [microseconds(time[key]) for key in ("median", "low", "high")]
        + [f"{time['loops']:.0f}"]
        for name in report.workloads()
        for environment, measured in report.find(name)
        for peer, time in measured.times.items()
    ]
    columns = ["work", "peer", "environment", "median", "25 %", "75 %", "calls"]
    note = "Microseconds a step: median and quartiles of the rounds, and calls a round."
    return f"## Times\n\n{note}\n\n{markdown_table(columns, rows, left=3)}"


def remarks(report: Report) -> str:
    """Return where and how the report was made, with which versions, and what failed."""
    threads = "one thread" if report.threads == 1 else f"{report.threads} threads"
    lines = [
        f"Measured {report.made} on {report.processor}, {threads}, {report.rounds} interleaved "
        f"rounds of about {report.round_ms:g} ms for each program."
    ]
    for environment, found in report.versions().items():
        listed = ", ".join(f"{name} {version}" for name, version in found.items())
        lines.append(f"- {environment}: {listed}")
    lines += [f"- {line}" for line in dict.fromkeys(report.failed())]
    missing, found_peers = set(), set()
    for measured in (one for many in report.environments.values() for one in many):
        if measured.workload in BY_NAME:
            workload = BY_NAME[measured.workload]
            if workload.is_missing_package:
                lines.append(
                    f"- Not measured, because {workload.package} is not installed: "
                    f"{workload.title}."
                )
                continue
            framework = workload.framework
            found_peers |= set(peers.BY_FRAMEWORK[framework]) - set(measured.absent)
        missing |= set(measured.absent)
    if absent := sorted(missing - found_peers):
        lines.append(f"- Not installed, so not measured: {', '.join(absent)}.")
    return "\n".join(lines)


def all_tables(report: Report) -> Iterator[str]:
    """Yield the tables of a report."""
    for section in sections(report):
        if section.rows:
            yield goals_table(section)
            yield peers_table(section)
        if section.costs:
            yield costs_table(section)
        yield from map(growth_table, section.growth)
    yield times_table(report)


def to_markdown(report: Report) -> str:
    """Return the whole report."""
    return "\n\n".join(["# Cost of a step", remarks(report), *all_tables(report)]) + "\n"
