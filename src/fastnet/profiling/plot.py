"""Profiles as pictures: steps as stacked bars of their parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fastnet.profiling.rows import Section
from fastnet.profiling.table import format_seconds

__all__ = ["draw"]

_OTHERS = "others"
_MIN_SHARE = 0.01  # A smaller part is drawn with others.
_MIN_LABELLED = 0.06


def draw(bars: Mapping[str, Sequence[Section]], path: str | Path | None) -> Any:
    """Draw a bar for each section, with one picture for each of several groups of bars.

    Args:
        bars: The sections of each picture, by its title.
        path: A file to save the figure in, or None.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If there is no section.
    """
    if not bars:
        raise ValueError("There is nothing to draw: the profile has no steps.")
    try:
        matplotlib: Any = import_module("matplotlib")
        figures: Any = import_module("matplotlib.figure")
    except ImportError as error:
        raise ImportError(
            "Drawing a profile needs matplotlib. Run: pip install 'fastnet-runtime[profile]'"
        ) from error
    parts = {title: _parts(sections) for title, sections in bars.items()}
    heights = [1.6 + 0.8 * len(bars[title]) + 0.27 * len(parts[title]) for title in bars]
    names = list(dict.fromkeys(name for each in parts.values() for name in each))
    colormap = matplotlib.colormaps["tab20"]
    colors = {name: colormap(index % 20) for index, name in enumerate(names)}
    colors[_OTHERS] = "#c9cdd2"
    # A figure made without pyplot needs no display and no closing.
    figure = figures.Figure(figsize=(11, sum(heights)), layout="constrained", dpi=130)
    grid = figure.subplots(len(bars), 1, squeeze=False, height_ratios=heights)
    for axes, (title, sections) in zip(grid[:, 0], bars.items(), strict=True):
        _draw_bars(axes, sections, parts[title], colors)
        axes.set_title(title, loc="left", fontsize=11)
    if path is not None:
        figure.savefig(path)
    return figure


def _parts(sections: Sequence[Section]) -> dict[str, list[float]]:
    """Return the mean of each part in each section; small parts are added up."""
    count = len(sections)
    means: dict[str, list[float]] = {}
    for index, section in enumerate(sections):
        for row in section.parts:
            means.setdefault(row.title, [0.0] * count)[index] += row.mean
    others = [0.0] * count
    for name in list(means):
        shares = [
            mean / (section.step.mean or 1.0)
            for mean, section in zip(means[name], sections, strict=True)
        ]
        if max(shares) < _MIN_SHARE:
            others = [sum(pair) for pair in zip(others, means.pop(name), strict=True)]
    return {**means, _OTHERS: others} if any(others) else means


def _draw_bars(
    axes: Any, sections: Sequence[Section], parts: Mapping[str, list[float]], colors: Any
) -> None:
    longest = max(section.step.mean for section in sections) or 1.0
    starts = [0.0] * len(sections)
    for name, means in parts.items():
        times = ", then ".join(map(format_seconds, means))
        bars = axes.barh(
            range(len(sections)),
            means,
            0.7,
            left=starts,
            color=colors[name],
            label=f"{name}  {times}",
        )
        texts = [format_seconds(mean) if mean > _MIN_LABELLED * longest else "" for mean in means]
        axes.bar_label(bars, texts, label_type="center", fontsize=8)
        starts = [start + mean for start, mean in zip(starts, means, strict=True)]
    labels = [f"{format_seconds(one.step.mean)} a step\n(mean of {one.steps})" for one in sections]
    axes.set_yticks(range(len(sections)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda value, _: format_seconds(value))
    axes.tick_params(axis="x", labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.25), fontsize=8, frameon=False)
