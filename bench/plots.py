"""The plots of a report: ratios of every peer, and how a step's time grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from bench import peers
from bench.results import SUBJECT, Growth, Report, Row, Section, sections
from bench.tables import with_unit

_COLUMNS = 3
_FIRST_SHOWN = "mlp_train"
# The least that a logarithmic axis shows.
_LEAST = 1e-3
# From this span on, sizes are on a logarithmic axis.
_LOGARITHMIC_SPAN = 8


def draw(report: Report, folder: Path, name: str) -> None:
    """Write the plots of a report into a folder, as NAME.png, NAME_step.png and NAME_ops.png etc.

    Args:
        report: The report.
        folder: The folder.
        name: The beginning of the files' names.
    """
    found = sections(report)
    panels = [(section, row) for section in found for row in section.rows if _is_drawn(row)]
    if panels:
        _ratios(panels, folder / f"{name}.png")
    for _, row in panels:
        if row.workload.name == _FIRST_SHOWN:
            _step(row, folder / f"{name}_step.png")
    groups: dict[str, list[Growth]] = {}
    for group in (one for section in found for one in section.growth):
        groups.setdefault(group.name.replace("grow_", ""), []).append(group)
    for group_name, several in groups.items():
        _growth(several, folder / f"{name}_{group_name}.png")


def _is_drawn(row: Row) -> bool:
    """Return whether a row has a panel: each workload beside its first reference."""
    return bool(_bars(row)) and row.reference == row.workload.references[0]


def _bars(row: Row) -> list[str]:
    """Return the peers that have a bar: all but the reference, which is the line at 1."""
    hidden = set() if row.unit == "count" else {row.reference, "tf_concrete_any"}
    return [name for name in row.cells if name not in hidden]


def _ratios(panels: Sequence[tuple[Section, Row]], path: Path) -> None:
    """Draw a panel for each row."""
    lines = -(-len(panels) // _COLUMNS)
    heights = [
        1.6 + max(len(_bars(row)) for _, row in panels[start : start + _COLUMNS])
        for start in range(0, len(panels), _COLUMNS)
    ]
    figure, grid = pyplot.subplots(
        lines,
        _COLUMNS,
        figsize=(5.4 * _COLUMNS, 0.36 * sum(heights) + 0.8),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (section, row) in zip(grid.flat, panels, strict=False):
        _panel(axes, row)
        # PyTorch has one version and comes first.
        above = "" if section.framework == "torch" else f"{section.title}\n"
        axes.set_title(f"{above}{row.workload.title}", fontsize=9, loc="left")
    figure.suptitle("Cost of a step; less is better; black mark: the goal of fastnet", fontsize=11)
    _save(figure, path)


def _step(row: Row, path: Path) -> None:
    """Draw one row alone, without its goal."""
    row = replace(row, workload=replace(row.workload, goal=None))
    figure, axes = pyplot.subplots(
        figsize=(7.4, 1.1 + 0.32 * len(_bars(row))), layout="constrained"
    )
    _panel(axes, row)
    title = f"A train step of a small PyTorch model, beside the {row.beside} (less is better)"
    axes.set_title(title, fontsize=10, loc="left")
    _save(figure, path)


def _axis_title(row: Row) -> str:
    """Return the title of a panel's axis."""
    return {
        "ratio": f"ratio to the {row.beside}".replace("the FastEstimator", "FastEstimator"),
        "count": "count",
        "ms": "milliseconds beyond a plain step",
        "ns an op": "nanoseconds an op beyond a plain step",
    }[row.unit] + " (logarithmic axis)"


def _panel(axes: Any, row: Row) -> None:
    """Draw one row: a bar for each peer, from the reference at 1 to either side."""
    names = _bars(row)[::-1]
    values = [max(row.cells[name].value, _LEAST) for name in names]
    limit = row.goal.limit if row.goal else None
    low, high = (pick([*values, limit or 1, 1]) for pick in (min, max))
    axes.set_xscale("log")
    bars = axes.barh(
        [peers.title(name) for name in names],
        [value - 1 for value in values],
        left=1,
        height=0.72,
        color=[peers.PEERS[name].color for name in names],
    )
    labels = [with_unit(row, value) for value in values]
    for label, name in zip(axes.bar_label(bars, labels, padding=4, fontsize=8), names, strict=True):
        label.set_fontweight("bold" if name == SUBJECT else "normal")
    if limit is not None and SUBJECT in names:
        place = names.index(SUBJECT)
        axes.plot([limit] * 2, [place - 0.42, place + 0.42], color="black", lw=1.8)
    # Room for the numbers beside the bars.
    reach = max(high / low, 1.6) ** 0.25
    axes.set_xlim(low / (reach if low < 1 else reach**0.3), high * reach)
    axes.axvline(1, color="#444444", lw=0.8)
    axes.tick_params(axis="x", labelsize=7)
    axes.tick_params(axis="y", labelsize=8)
    axes.set_xlabel(_axis_title(row), fontsize=7)
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if high / low < 100:
        ticks = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50]
        axes.set_xticks([tick for tick in ticks if low / 1.3 <= tick <= high * 1.3])
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylim(-0.6, max(len(names), 4) - 0.4)


def _growth(groups: Sequence[Growth], path: Path) -> None:
    """Draw a line for each peer, in a panel for each section that has the group."""
    width = 7.4 * len(groups)
    figure, grid = pyplot.subplots(
        1, len(groups), figsize=(width, 4.8), squeeze=False, layout="constrained"
    )
    for axes, group in zip(grid.flat, groups, strict=True):
        for peer in (group.reference, *group.ratios):
            times = group.times_ns(peer)
            sizes = sorted(times)
            axes.plot(
                sizes,
                [times[size] / 1e3 for size in sizes],
                color=peers.PEERS[peer].color,
                label=peers.title(peer),
                linewidth=2.4 if peer == SUBJECT else 1.3,
                marker="s" if peer == SUBJECT else "o",
                markersize=4,
            )
        axes.set_yscale("log")
        label = group.what
        if 0 < _LOGARITHMIC_SPAN * min(group.sizes) <= max(group.sizes):
            axes.set_xscale("log")
            label += " (logarithmic axis)"
        axes.set_xticks(group.sizes, [f"{size:,}" for size in group.sizes], fontsize=8)
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.set_xlabel(label)
        axes.set_ylabel("µs a step (logarithmic axis)")
        axes.set_title(f"{group.section}: growth with {group.what}", fontsize=10)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8, frameon=False)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
