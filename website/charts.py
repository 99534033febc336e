"""Charts of what was measured, for a page that a person can hover over: Plotly, made in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from bench import peers
from bench.ranks import COLORS, TITLES, Line
from bench.results import SUBJECT, Cell, Growth, Row, Section
from bench.tables import microseconds, with_unit

_GRAY = "#8a8f98"
_WIDEST_LABEL = 20
_ROW_PX, _AROUND_PX = 38, 120


def ratios(section: Section) -> go.Figure | None:
    """Draw the ratios of a section's rows: a line for each work, a dot for each peer.

    Args:
        section: The section.

    Returns:
        The chart, or None if no row has ratios beside its first reference.
    """
    rows: list[Row] = []
    for row in section.rows:
        if row.unit == "ratio" and row.cells and row.workload not in [one.workload for one in rows]:
            rows.append(row)
    if not rows:
        return None
    figure = go.Figure()
    for peer in peers.BY_FRAMEWORK[section.framework]:
        found = [row for row in rows if peer in row.cells]
        if not found:
            continue
        figure.add_scatter(
            x=[max(row.cells[peer].value, 1e-3) for row in found],
            y=[_wrapped(row.workload.title) for row in found],
            name=peers.title(peer),
            mode="markers",
            zorder=2 if peer == SUBJECT else 1,
            marker={
                "color": _color(peer),
                "size": 13 if peer == SUBJECT else 9,
                "symbol": "diamond" if peer == SUBJECT else "circle",
            },
            customdata=[[_describe(row, row.cells[peer])] for row in found],
            hovertemplate="%{customdata[0]}",
        )
    figure.add_vline(x=1, line={"color": _GRAY, "width": 1, "dash": "dot"})
    baseline = peers.title(rows[0].reference)
    _lay_out(figure, len(rows), f"ratio to the {baseline} (logarithmic axis)")
    figure.update_xaxes(type="log", dtick=1)
    return figure


def costs(rows: Sequence[Row]) -> go.Figure:
    """Draw the overhead of ops, with the spread of the rounds.

    Args:
        rows: A row for each op.

    Returns:
        The chart.
    """
    figure = go.Figure()
    for peer in ("fastestimator", SUBJECT):
        found = [row for row in rows if peer in row.cells]
        cells = [row.cells[peer] for row in found]
        if not cells:
            continue
        figure.add_scatter(
            x=[cell.value for cell in cells],
            y=[row.workload.title for row in found],
            name=peers.title(peer),
            mode="markers",
            marker={"color": _color(peer), "size": 9 if peer == SUBJECT else 7},
            customdata=[[_describe(row, row.cells[peer])] for row in found],
            hovertemplate="%{customdata[0]}",
        )
    goals = {row.goal.limit for row in rows if row.goal}
    for goal in goals:
        figure.add_vline(x=goal, line={"color": _GRAY, "width": 1, "dash": "dot"})
    _lay_out(figure, len(rows), "µs that the op adds", row_px=22)
    return figure


def grows(group: Growth) -> go.Figure:
    """Draw how a step's time grows with one quantity, a line for each peer.

    Args:
        group: The workloads that differ in one number.

    Returns:
        The chart.
    """
    figure = go.Figure()
    for peer in (group.reference, *group.ratios):
        times = group.times_ns(peer)
        sizes = sorted(times)
        figure.add_scatter(
            x=sizes,
            y=[times[size] / 1e3 for size in sizes],
            name=peers.title(peer),
            mode="lines+markers",
            line={"color": _color(peer), "width": 3 if peer == SUBJECT else 1.5},
            customdata=[[microseconds(times[size])] for size in sizes],
            hovertemplate=f"{peers.title(peer)}: %{{customdata[0]}} µs at %{{x:,}}",
        )
    logarithmic = min(group.sizes) > 0
    _lay_out(figure, 9, group.what + " (logarithmic axis)" * logarithmic)
    if logarithmic:
        figure.update_xaxes(type="log", tickvals=group.sizes, ticktext=_few(group.sizes))
    figure.update_yaxes(type="log", dtick=1, title="µs a step (logarithmic axis)", autorange=True)
    return figure


def ranks(lines: Sequence[Line]) -> go.Figure:
    """Draw the ratios of processes that train together, with the middle half of the rounds.

    Args:
        lines: What was measured.

    Returns:
        The chart.
    """
    figure = go.Figure()
    colors = {peer.title: peer.color for peer in peers.PEERS.values()}
    colors |= {title: COLORS[name] for name, title in TITLES.items()}
    steps = list(dict.fromkeys((line.workload, line.engine) for line in lines))
    for peer in dict.fromkeys(line.peer for line in lines):
        own = [line for line in lines if line.peer == peer]
        figure.add_scatter(
            x=[line.ratio.median for line in own],
            y=[_wrapped(f"{line.workload}, {line.engine}") for line in own],
            name=peer,
            mode="markers",
            marker={"color": colors[peer], "size": 10},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [line.ratio.high - line.ratio.median for line in own],
                "arrayminus": [line.ratio.median - line.ratio.low for line in own],
                "thickness": 1,
            },
            hovertemplate=f"{peer}: %{{x:.3f}}",
        )
    figure.update_layout(scattermode="group")
    _lay_out(figure, 2 * len(steps), f"ratio to the {peers.title('bare')}")
    return figure


def to_html(figure: go.Figure, anchor: str) -> str:
    """Return a chart as HTML, for a page that has loaded Plotly.

    Args:
        figure: The chart.
        anchor: Its identifier on the page.
    """
    html: str = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=anchor,
        config={"displayModeBar": False, "responsive": True},
    )
    return f'<div class="chart">{html}</div>'


def _describe(row: Row, cell: Cell) -> str:
    spread = ""
    if cell.spread is not None:
        spread = f", {with_unit(row, cell.spread.low)} to {with_unit(row, cell.spread.high)}"
    time = "" if cell.time_ns is None else f"<br>a step takes {microseconds(cell.time_ns)} µs"
    return f"{with_unit(row, cell.value)}{spread}{time}"


def _lay_out(figure: go.Figure, lines: int, title: str, row_px: int = _ROW_PX) -> None:
    figure.update_layout(
        height=_AROUND_PX + row_px * lines,
        margin={"l": 10, "r": 10, "t": 10, "b": 10},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "inherit", "size": 12},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.01, "x": 0, "xanchor": "left"},
        hovermode="closest",
        template=None,
    )
    axis: dict[str, Any] = {
        "automargin": True,
        "gridcolor": "rgba(128,128,128,0.25)",
        "zerolinecolor": "rgba(128,128,128,0.5)",
        "fixedrange": True,
    }
    figure.update_xaxes(title=title, **axis)
    figure.update_yaxes(autorange="reversed", **axis)


def _color(peer: str) -> str:
    return peers.PEERS[peer].color


def _few(sizes: Sequence[int]) -> list[str]:
    """Name every other size where there are many, so that a narrow chart has room."""
    step = 2 if len(sizes) > 7 else 1
    return [f"{size:,}" if index % step == 0 else "" for index, size in enumerate(sizes)]


def _wrapped(text: str, widest: int = _WIDEST_LABEL) -> str:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > widest:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "<br>".join(lines)
