"""The report as a picture: a panel for each workload, a bar for each peer, ratios on a log axis."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import peers
from bench.results import SUBJECT, Report, Row, Section, sections
from bench.tables import shown

_COLUMNS = 3
# What took no time that could be measured has a bar all the same, on a log axis.
_LEAST = 1e-3
# Its panels would look like those beside the concrete function for one size.
_NOT_DRAWN = "tf_concrete_any"
_FIRST_SHOWN = "mlp_train"
# fastnet stands out; each peer keeps its color from panel to panel.
_COLORS = {
    "bare": "#9aa0a6",
    "bare_strict": "#c9cdd2",
    "fastnet": "#0b7a75",
    "fastestimator": "#c1121f",
    "tensordict": "#e07a1f",
    "lightning": "#b0489b",
    "fabric": "#7b4fa3",
    "ignite": "#d9a400",
    "accelerate": "#3a6ea5",
    "optree": "#5f9e3f",
    "pytree": "#a0522d",
    "compiled_model": "#e07a1f",
    "compiled_update": "#b0489b",
    "compiled_loop": "#3a6ea5",
    "jax_step": "#5f9e3f",
    "tf_concrete": "#9aa0a6",
    "tf_concrete_any": "#c9cdd2",
    "tf_function": "#e07a1f",
    "keras_fit": "#7b4fa3",
    "keras_on_batch": "#3a6ea5",
}


def draw(report: Report, path: Path) -> None:
    """Draw the report into the file `path`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [
        (_title(section, row), row)
        for section in sections(report)
        for row in section.rows
        if _peers_of(row) and row.reference != _NOT_DRAWN
    ]
    if not panels:
        return
    lines = math.ceil(len(panels) / _COLUMNS)
    heights = [
        1.1 + max(len(_peers_of(row)) for _, row in panels[start : start + _COLUMNS])
        for start in range(0, len(panels), _COLUMNS)
    ]
    figure, grid = pyplot.subplots(
        lines,
        _COLUMNS,
        figsize=(5.2 * _COLUMNS, 0.36 * sum(heights) + 0.5),
        gridspec_kw={"height_ratios": heights},
        squeeze=False,
        layout="constrained",
    )
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for axes, (title, row) in zip(grid.flat, panels, strict=False):
        _panel(axes, row)
        axes.set_title(title, fontsize=9, loc="left")
    figure.suptitle(
        "What a step costs: ratio to the loop written by hand (log scale, less is better; "
        "black mark: fastnet's goal)",
        fontsize=11,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def draw_step(report: Report, path: Path) -> None:
    """Draw the train step of the small MLP alone into the file `path`, if it was measured."""
    rows = [
        row for section in sections(report) for row in section.rows if row.workload == _FIRST_SHOWN
    ]
    if not rows:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    height = 0.9 + 0.32 * len(_peers_of(rows[0]))
    figure, axes = pyplot.subplots(figsize=(7.4, height), layout="constrained")
    _panel(axes, replace(rows[0], goal=None))
    axes.set_title(
        "A train step of a small PyTorch model, beside the loop by hand (less is better)",
        fontsize=10,
        loc="left",
    )
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _peers_of(row: Row) -> list[str]:
    """Return the peers that have a bar: all but the reference, which is the line at 1."""
    if row.unit == "count":
        return list(row.cells)
    hidden = {row.reference, *peers.BASELINES}
    return [name for name in row.cells if name not in hidden]


def _title(section: Section, row: Row) -> str:
    """Return a panel's title. PyTorch has one version and stands first: it goes without saying."""
    beside = {
        "ratio": f", beside {_with_article(peers.title(row.reference))}",
        "count": ", most alive at once" if row.reference == "bare" else "",
        "ms": ", ms more than a step",
        "ns an op": ", ns an op more than a step",
    }[row.unit]
    above = "" if section.framework == "torch" else f"{section.title}\n"
    return f"{above}{row.title}{beside}"


def _with_article(name: str) -> str:
    return name if name == "FastEstimator" else f"the {name}"


def _panel(axes: Any, row: Row) -> None:
    """Draw one row."""
    names = _peers_of(row)[::-1]
    values = [max(row.cells[name].value, _LEAST) for name in names]
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        # On a log axis a bar starts where the reference is, and grows to either side of it.
        axes.barh(place, value - 1, left=1, height=0.72, color=_COLORS[name])
        text = shown(row, value)
        left = value < 1
        at = value
        if name == SUBJECT and row.goal is not None:
            # The mark of the goal must not cross the number.
            beyond = value / row.goal.limit if left else row.goal.limit / value
            at = row.goal.limit if 1 <= beyond < 1.5 else value
        axes.annotate(
            f" {text} ",
            (at, place),
            ha="right" if left else "left",
            va="center",
            fontsize=8,
            fontweight="bold" if name == SUBJECT else "normal",
        )
        if name == SUBJECT and row.goal is not None:
            axes.plot([row.goal.limit] * 2, [place - 0.42, place + 0.42], color="black", lw=1.8)
    axes.set_yticks(range(len(names)), [peers.title(name) for name in names], fontsize=8)
    axes.set_xscale("log")
    limit = [row.goal.limit] if row.goal else []
    low, high = min([*values, *limit, 1]), max([*values, *limit, 1])
    # Room for the numbers beside the bars, and at least a little of an axis.
    reach = max(high / low, 1.6) ** 0.22
    axes.set_xlim(low / (reach if low < 1 else reach**0.3), high * reach)
    axes.axvline(1, color="#444444", lw=0.8)
    axes.tick_params(axis="x", labelsize=7)
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if high / low < 8:
        axes.set_xticks(
            [tick for tick in (0.5, 1, 1.5, 2, 3, 5) if low / 1.3 <= tick <= high * 1.3]
        )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
