"""How a step's cost grows, as pictures: one for each thing that there is more and more of."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from bench import growth, peers
from bench.results import SUBJECT, Report, sections

# Okabe and Ito's colors, which are told apart with every kind of sight, and a marker each.
_STYLES = {
    "bare": ("#000000", "o", "-"),
    "bare_strict": ("#000000", "", ":"),
    "fastnet": ("#0072b2", "s", "-"),
    "fastestimator": ("#d55e00", "^", "-"),
    "tensordict": ("#e69f00", "D", "-"),
    "fabric": ("#cc79a7", "v", "--"),
    "ignite": ("#56b4e9", "P", "--"),
    "accelerate": ("#009e73", "X", "--"),
    "optree": ("#7a7a7a", "<", "-."),
    "pytree": ("#b8860b", ">", "-."),
    "tf_concrete": ("#000000", "o", "-"),
    "tf_function": ("#e69f00", "D", "-"),
}
# A line over sizes that double or more is straight on log axes, and one that starts at none is not.
_LEAST_SPAN_FOR_LOG = 8
# Below this span there is room for ticks at 2 and 5 too.
_FEW_DECADES = 3e3


def style(peer: str) -> tuple[str, str, str]:
    """Return the color, the marker and the dashes of a peer's line."""
    return _STYLES[peer]


def draw(report: Report, folder: Path, stem: str) -> list[Path]:
    """Draw a picture for each thing that grows.

    Args:
        report: The report.
        folder: Where to.
        stem: What the files' names begin with.

    Returns:
        The files.
    """
    found: dict[str, list[growth.Group]] = {}
    for section in sections(report):
        for group in growth.groups(section):
            found.setdefault(group.name, []).append(group)
    if not found:
        return []
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, groups in found.items():
        made.append(folder / f"{stem}_{name.replace('grow_', '')}.png")
        _picture(groups, made[-1])
    return made


def _picture(groups: list[growth.Group], path: Path) -> None:
    """Draw a group, with a panel for each section that has it."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(groups), figsize=(7.4 * len(groups), 4.8), squeeze=False, layout="constrained"
    )
    for panel, group in zip(axes.flat, groups, strict=True):
        _panel(panel, group)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _panel(axes: Any, group: growth.Group) -> None:
    from matplotlib.ticker import LogLocator

    lines = {group.reference: group.baseline_ns}
    lines |= {line.peer: line.times_ns for line in group.lines}
    ends = []
    for peer, times in lines.items():
        color, marker, dashes = style(peer)
        sizes = sorted(times)
        values = [times[size] / 1e3 for size in sizes]
        axes.plot(
            sizes,
            values,
            color=color,
            marker=marker,
            linestyle=dashes,
            linewidth=2.4 if peer == SUBJECT else 1.3,
            markersize=5,
            zorder=3 if peer == SUBJECT else 2,
        )
        ends.append((values[-1], peer))
    axes.set_yscale("log")
    if min(group.sizes) > 0 and max(group.sizes) >= _LEAST_SPAN_FOR_LOG * min(group.sizes):
        axes.set_xscale("log", base=10 if 10 in group.sizes else 2)
    axes.set_xticks(group.sizes, [f"{size:,}" for size in group.sizes])
    axes.minorticks_off()
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < _FEW_DECADES else (1,)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set_xlabel(group.what)
    axes.set_ylabel("µs (log scale)")
    axes.set_title(f"{group.section}: growth with {group.what}", fontsize=10)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    _label_ends(axes, ends, max(group.sizes))


def _label_ends(axes: Any, ends: list[tuple[float, str]], size: int) -> None:
    """Write each line's name at its end, one above the other where lines meet."""
    low, high = axes.get_ylim()
    # As much of the axis as a line of text is high.
    step = (high / low) ** 0.05
    placed = 0.0
    for value, peer in sorted(ends):
        at = max(value, placed * step)
        placed = at
        axes.annotate(
            peers.title(peer),
            (size, value),
            xytext=(10, 72 * axes.bbox.height / axes.figure.dpi * _part(at, value, low, high)),
            textcoords="offset points",
            color=style(peer)[0],
            fontsize=8.5,
            fontweight="bold" if peer == SUBJECT else "normal",
            va="center",
            annotation_clip=False,
        )


def _part(at: float, value: float, low: float, high: float) -> float:
    """Return how far above `value` a label stands, as a part of a log axis."""
    return math.log(at / value) / math.log(high / low)
