"""A profile as a picture: steps as stacked bars of their parts."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fastnet.profiling.rows import Section
from fastnet.profiling.table import format_seconds

_MIN_SHARE = 0.01  # Smaller parts are drawn as one bar.
_MIN_LABELLED = 0.06  # Smaller bars have no room for a label.


def draw(sections: Sequence[Section], path: str | Path | None) -> Any:
    """Return a matplotlib figure with a bar for each section, and save it if there is a path."""
    if not sections:
        raise ValueError("There is nothing to draw: the profile has no steps.")
    try:
        figures: Any = import_module("matplotlib.figure")
    except ImportError as error:
        raise ImportError(
            "Drawing a profile needs matplotlib. Run: pip install matplotlib"
        ) from error
    bars_of_sections = [_bars(section) for section in sections]
    # Each bar has a line in the legend.
    heights = [2.4 + 0.27 * len(bars) for bars in bars_of_sections]
    # A figure made without pyplot needs no display and no closing.
    figure = figures.Figure(figsize=(11, sum(heights)), layout="constrained", dpi=130)
    grid = figure.subplots(len(sections), 1, squeeze=False, height_ratios=heights)
    for axes, section, bars in zip(grid[:, 0], sections, bars_of_sections, strict=True):
        _draw_bars(axes, section, bars)
    if path is not None:
        figure.savefig(path)
    return figure


def _bars(section: Section) -> list[tuple[str, float]]:
    """Return the name and the mean of each part of a step; small parts are added up."""
    bars = []
    small_parts = 0.0
    for row in section.parts:
        if section.share(row) < _MIN_SHARE:
            small_parts += row.mean
        else:
            bars.append((row.title, row.mean))
    if small_parts:
        bars.append(("others", small_parts))
    return bars


def _draw_bars(axes: Any, section: Section, bars: Sequence[tuple[str, float]]) -> None:
    colors: Any = import_module("matplotlib").colormaps["tab20"]
    start = 0.0
    handles, legend = [], []
    for index, (name, mean) in enumerate(bars):
        handles.append(axes.barh([0], [mean], 0.7, left=[start], color=colors(index % 20)))
        # Matplotlib reads text between two dollar signs as a formula.
        legend.append(f"{name}  {format_seconds(mean)}".replace("$", r"\$"))
        label = format_seconds(mean) if mean > _MIN_LABELLED * section.step.mean else ""
        axes.bar_label(handles[-1], [label], label_type="center", fontsize=8)
        start += mean
    title = f"{section.name}: a step takes {format_seconds(section.step.mean)}"
    axes.set_title(f"{title} (mean of {section.steps})", loc="left", fontsize=11)
    axes.set_yticks([])
    axes.xaxis.set_major_formatter(lambda value, _: format_seconds(value))
    axes.tick_params(axis="x", labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.legend(
        handles, legend, loc="upper left", bbox_to_anchor=(0, -0.25), fontsize=8, frameon=False
    )
