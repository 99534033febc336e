"""Profiles as pictures: a step as a bar of its parts, and two steps side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastnet.profiling.compared import ComparedRow
from fastnet.profiling.optional import require
from fastnet.profiling.rows import Row, Section
from fastnet.profiling.table import seconds_text

__all__ = ["draw_comparison", "draw_profile"]

# what users wrote, against what the network does around it
_OPS = ("op", "graph", "postprocessing")
_OP_COLORS = (
    *("#0b7a75", "#3a6ea5", "#5f9e3f", "#7b4fa3", "#2a9d8f", "#6d8fc7", "#8ab17d"),
    *("#1e3a8a", "#a3b84a", "#66c2d0", "#4a1d6b", "#14532d", "#b9a7e0"),
)
_OTHER_COLORS = ("#e07a1f", "#d9a400", "#c1121f", "#f2b880", "#a0522d", "#e5989b", "#f4d35e")
_LITTLE_COLOR = "#c9cdd2"
# a part that takes less of a step is drawn together with others
_LITTLE = 0.01
_LABELLED = 0.06
# what a letter of a label takes of the length of a bar
_CHARACTER = 0.0058
_MOST_CHANGES = 15
# inches
_BETWEEN_BARS = 0.15


def draw_profile(sections: Sequence[Section], path: str | Path | None = None) -> Any:
    """Draw a bar for each section: a step, and what it is made of.

    Args:
        sections: The sections.
        path: A file to save the picture in, or None.

    Returns:
        The figure.

    Raises:
        ImportError: If matplotlib is not there.
        ValueError: If there is no section.
    """
    if not sections:
        raise ValueError("There is nothing to draw: the profile has no steps.")
    everything = [_drawn([section]) for section in sections]
    heights = [2.2 + 0.27 * len(parts) for parts in everything]
    figure = _figure(11, sum(heights))
    # a title is nearer to its own bar than to the legend above it
    figure.get_layout_engine().set(h_pad=_BETWEEN_BARS)
    grid = figure.subplots(len(sections), 1, squeeze=False, height_ratios=heights)
    # a part has the same colour in all of them
    colors = _colors({name: rows for parts in everything for name, rows in parts.items()})
    for axes, section, parts in zip(grid[:, 0], sections, everything, strict=True):
        _bar(axes, 0, section, parts, colors)
        labels = [
            f"{name}  {seconds_text(_mean(section, rows))}, {_mean(section, rows) / total:.1%}"
            for total in [section.step.mean or 1.0]
            for name, rows in parts.items()
        ]
        axes.legend(
            labels=labels, loc="upper left", bbox_to_anchor=(0, -0.25), fontsize=8, frameon=False
        )
        axes.set_title(
            f"{section.name}: a step takes {seconds_text(section.step.mean)} "
            f"(mean of {section.steps})",
            loc="left",
            fontsize=11,
        )
        axes.set_yticks([])
        _time_axis(axes, "x")
    return _saved(figure, path)


def draw_comparison(
    pairs: Sequence[tuple[Section, Section]],
    rows: Sequence[ComparedRow],
    path: str | Path | None = None,
) -> Any:
    """Draw two steps side by side for each section, and by how much its parts grew.

    Args:
        pairs: The sections, before and after.
        rows: Their parts, compared.
        path: A file to save the picture in, or None.

    Returns:
        The figure.

    Raises:
        ImportError: If matplotlib is not there.
    """
    figure = _figure(13, 5.2 * len(pairs))
    grid = figure.subplots(len(pairs), 2, squeeze=False, width_ratios=(3, 4))
    for (bars, changes), pair in zip(grid, pairs, strict=True):
        # those of the later step alone would else stand above all that is no op
        parts = dict(sorted(_drawn(pair).items(), key=lambda part: part[1][0].kind not in _OPS))
        for place, section in enumerate(pair):
            _bar(bars, place, section, parts, _colors(parts), upright=True)
        takes = [seconds_text(section.step.mean) for section in pair]
        bars.set_xticks((0, 1), [f"before\n{takes[0]}", f"after\n{takes[1]}"])
        bars.set_xlim(-0.6, 1.6)
        bars.set_title(f"{pair[0].name}: a step", loc="left", fontsize=11)
        handles, labels = bars.get_legend_handles_labels()
        named = dict(zip(labels[::-1], handles[::-1], strict=True))
        bars.legend(
            named.values(),
            named.keys(),
            fontsize=7,
            frameon=False,
            loc="upper left",
            bbox_to_anchor=(1, 1),
        )
        _time_axis(bars, "y")
        _changes(changes, [row for row in rows if row.section == pair[0].name])
    return _saved(figure, path)


def _figure(width: float, height: float) -> Any:
    # a figure of its own, which needs no screen and leaves pyplot as it is
    figure = require("matplotlib.figure", "Drawing a profile")
    return figure.Figure(figsize=(width, height), layout="constrained", dpi=130)


def _saved(figure: Any, path: str | Path | None) -> Any:
    if path is not None:
        figure.savefig(path)
    return figure


def _drawn(sections: Sequence[Section]) -> dict[str, list[Row]]:
    """Say which rows are drawn under which name: those that take little in all bars are one."""
    parts: dict[str, list[Row]] = {}
    most: dict[str, float] = {}
    for section in sections:
        titles = Counter(row.title for row in section.parts)
        for row in section.parts:
            # an op has the same colour in both bars, wherever it stands, so its place says which it
            # is only where two ops have one name
            name = row.title if titles[row.title] == 1 else f"{row.place}: {row.title}"
            parts.setdefault(name, []).append(row)
            most[name] = max(most.get(name, 0), section.share(row))
    little = [name for name in parts if most[name] < _LITTLE]
    if len(little) > 1:
        rows = [row for name in little for row in parts.pop(name)]
        parts[f"{len(little)} others"] = rows
    return parts


def _mean(section: Section, rows: Sequence[Row]) -> float:
    """Add up what the parts that are drawn as one take in a section."""
    drawn = set(map(id, rows))
    return sum(row.mean for row in section.parts if id(row) in drawn)


def _colors(parts: Mapping[str, Sequence[Row]]) -> dict[str, str]:
    ops = others = 0
    colors = {}
    for name, rows in parts.items():
        if name.endswith(" others") and len(rows) > 1:
            colors[name] = _LITTLE_COLOR
        elif rows[0].kind in _OPS:
            colors[name] = _OP_COLORS[ops % len(_OP_COLORS)]
            ops += 1
        else:
            colors[name] = _OTHER_COLORS[others % len(_OTHER_COLORS)]
            others += 1
    return colors


def _bar(
    axes: Any,
    place: float,
    section: Section,
    parts: Mapping[str, Sequence[Row]],
    colors: Mapping[str, str],
    upright: bool = False,
) -> None:
    draw = axes.bar if upright else axes.barh
    start = 0.0
    for name, rows in parts.items():
        size = _mean(section, rows)
        across = {"bottom" if upright else "left": start}
        draw(place, size, 0.7, color=colors[name], edgecolor="white", lw=0.6, label=name, **across)
        if size > _LABELLED * section.step.mean:
            middle = start + size / 2
            text = seconds_text(size)
            if not upright:
                text = _fitting(name, size / section.step.mean) + text
            axes.text(
                *((place, middle) if upright else (middle, place)),
                text,
                ha="center",
                va="center",
                fontsize=8 if upright else 7,
                color=_ink(colors[name]),
                clip_on=True,
            )
        start += size


def _ink(color: str) -> str:
    """Return what can be read on a colour: black or white."""
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    # how bright an eye takes each of them for
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 160 else "white"


def _fitting(name: str, share: float) -> str:
    """Return a line with as much of a name as there is room for in a part of a bar."""
    for text in (name, name.partition("(")[0]):
        if len(text) * _CHARACTER < share:
            return f"{text}\n"
    return ""


def _changes(axes: Any, rows: Sequence[ComparedRow]) -> None:
    chosen = sorted(rows, key=lambda row: -abs(row.difference))[:_MOST_CHANGES]
    chosen.sort(key=lambda row: row.difference)
    colors = {"grew": "#c1121f", "new": "#c1121f", "shrank": "#0b7a75", "gone": "#0b7a75"}
    for place, row in enumerate(chosen):
        axes.barh(
            place,
            row.difference,
            0.7,
            xerr=row.noise,
            color=colors.get(row.verdict, _LITTLE_COLOR),
            error_kw={"ecolor": "#444444", "elinewidth": 1, "capsize": 2},
        )
    axes.set_yticks(range(len(chosen)), [row.title for row in chosen], fontsize=8)
    axes.axvline(0, color="#444444", lw=0.8)
    axes.set_title("by how much it grew, with the noise (grey: within it)", loc="left", fontsize=11)
    _time_axis(axes, "x")


def _time_axis(axes: Any, which: str) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(lambda value, _: seconds_text(value))
    axes.tick_params(axis=which, labelsize=8)
    for side in ("top", "right", "left" if which == "x" else "bottom"):
        axes.spines[side].set_visible(False)
