"""Sums of stamps: what each part of each step took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastnet.profiling.clock import StampCost
from fastnet.profiling.rows import Row, Section, Stats

__all__ = ["BEGIN", "DeviceSpan", "Part", "Sums", "Timeline"]

# the stamp that a step begins with: what came before it is part of no step
BEGIN = -1
_STAMP = np.dtype([("at", "f8"), ("row", "i4"), ("part", "i4")])
# how many are kept one by one, for a trace file
_MOST_KEPT = 100_000

# what costs time because it is measured, and is no part of the step
_BESIDE = "measuring"
_ON_DEVICE = ("mean", "p50", "p95", "p99", "total")
_BETWEEN = ("dispatch", "setting", "autocast", "tape", "conversion", "rest", _BESIDE)
_ORDER = (
    "cut",
    "tape",
    "autocast",
    "setting",
    "input",
    "dispatch",
    "op",
    "trace",
    "graph",
    "deferred",
    "merge",
    "output",
    "release",
    "wait",
    "join",
    "conversion",
    "postprocessing",
    "rest",
    _BESIDE,
)


@dataclass(frozen=True)
class Part:
    """What a stamp may be of.

    Attributes:
        kind: Its kind.
        name: Its name.
        place: Its place, or None.
        in_kernel: Whether the kernel makes the stamp, which takes less.
    """

    kind: str
    name: str
    place: int | None
    in_kernel: bool = False


@dataclass(frozen=True)
class DeviceSpan:
    """What an op took on a device.

    Attributes:
        step: The number of the step.
        place: The place of the op, or the one after the last op for deferred updates.
        start: When it began, in seconds on the clock of the stamps.
        seconds: How long it took.
    """

    step: int
    place: int
    start: float
    seconds: float


@dataclass(frozen=True)
class Timeline:
    """Stamps of the first steps, one by one.

    Attributes:
        section: The section that they are of.
        parts: What rows are of.
        stamps: The time, the row and the minibatch of each.
        device: What ops took on the device in these steps, if it was measured.
    """

    section: str
    parts: tuple[Part, ...]
    stamps: NDArray[Any]
    device: tuple[DeviceSpan, ...] = ()

    @property
    def ops(self) -> dict[int, str]:
        """What each place is of: an op, or the deferred updates after the last one."""
        places = {_place_on_device(part, self.parts): part.name for part in self.parts}
        return {place: name for place, name in places.items() if place is not None}


class Sums:
    """What each part of each step took, from stamps.

    Args:
        cost: What making a stamp takes, and is left out.
    """

    def __init__(self, cost: StampCost) -> None:
        self._cost = cost
        self._times: list[NDArray[np.float64]] = []
        self._minibatches: list[NDArray[np.float64]] = []
        self._counts: list[NDArray[np.int64]] = []
        self._kept: list[NDArray[Any]] = []

    def add(self, taken: bytes, parts: Sequence[Part]) -> None:
        """Add stamps of whole steps.

        Args:
            taken: What `StampLog.take` gave.
            parts: What rows are of.
        """
        stamps = np.frombuffer(taken, _STAMP)
        if not len(stamps):
            return
        if sum(map(len, self._kept)) < _MOST_KEPT:
            self._kept.append(stamps)
        rows = stamps["row"][1:].astype(np.intp)
        begins = rows == BEGIN
        step = np.cumsum(begins)
        count = int(begins.sum()) + 1
        # what lies between two steps has a column of its own, which is left out again
        between_steps, width = len(parts), len(parts) + 1
        rows[begins] = between_steps
        costs = np.array([*(self._cost.of(part.in_kernel) for part in parts), 0.0])
        spans = np.diff(stamps["at"]) - costs[rows]
        self._times.append(_table(step, rows, count, width, spans)[:, :between_steps])
        made = _table(step, rows, count, width)[:, :between_steps]
        # what lies between other things happens once in a step
        between = [part.kind in _BETWEEN for part in parts]
        self._counts.append(np.where(between, made > 0, made).sum(axis=0, keepdims=True))
        minibatches = stamps["part"][1:]
        most = int(minibatches.max(initial=0))
        if most:
            beside = np.array([*(part.kind == _BESIDE for part in parts), True])
            spans[beside[rows]] = 0.0
        self._minibatches.append(_table(step, minibatches, count, most + 1, spans)[:, 1:])

    def section(
        self,
        name: str,
        mode: str,
        eager: bool,
        parts: Sequence[Part],
        sizes: Mapping[tuple[str, str], int],
        device: Sequence[DeviceSpan] = (),
    ) -> Section | None:
        """Sum all up.

        Args:
            name: What to call the section.
            mode: The mode.
            eager: Whether ops ran one by one.
            parts: What rows are of.
            sizes: How many bytes there are under a key, by kind and name of its part.
            device: What ops took on the device, if it was measured.

        Returns:
            The section; None if there was no step.
        """
        if not self._times:
            return None
        times = _stacked(self._times, len(parts))
        counts = _stacked(self._counts, len(parts)).sum(axis=0)
        inside = [part.kind != _BESIDE for part in parts]
        on_device = _device_stats(device, len(times))
        whole = Stats.of(times[:, inside].sum(axis=1))
        rows = [
            Row(
                part.name,
                part.kind,
                part.place,
                name,
                int(count),
                **vars(Stats.of(column)),
                in_step=part.kind != _BESIDE,
                bytes=sizes.get((part.kind, part.name)),
                **on_device.get(_place_on_device(part, parts), {}),
            )
            for part, count, column in zip(parts, counts, times.T, strict=True)
            if count
        ]
        rows.sort(key=lambda row: (_ORDER.index(row.kind), row.place or 0))
        step = Row("step", "step", None, name, len(times), **vars(whole), in_step=False)
        rows += self._minibatch_rows(name)
        return Section(name, mode, eager, len(times), step, tuple(rows))

    def _minibatch_rows(self, name: str) -> list[Row]:
        width = max(table.shape[1] for table in self._minibatches)
        table = _stacked(self._minibatches, width)
        return [
            Row(
                f"minibatch {place}",
                "minibatch",
                place,
                name,
                int(np.count_nonzero(column)),
                **vars(Stats.of(column)),
                in_step=False,
            )
            for place, column in enumerate(table.T)
        ]

    def first_stamps(self) -> NDArray[Any]:
        """Give the stamps of the first steps, one by one."""
        return np.concatenate([np.empty(0, _STAMP), *self._kept])


def _table(
    step: NDArray[Any],
    column: NDArray[Any],
    steps: int,
    width: int,
    values: NDArray[np.float64] | None = None,
) -> NDArray[Any]:
    """Add values up in a table of steps and columns; without any, count them."""
    size = steps * width
    return np.bincount(step * width + column, values, minlength=size).reshape(steps, width)


def _place_on_device(part: Part, parts: Sequence[Part]) -> int | None:
    """Give the place that a device's times of a part have, or None if it has none."""
    if part.kind == "deferred":
        return sum(other.kind == "op" for other in parts)
    return part.place if part.kind == "op" else None


def _device_stats(spans: Sequence[DeviceSpan], steps: int) -> dict[int | None, dict[str, float]]:
    """Sum up what the op of each place took on the device."""
    if not spans:
        return {}
    width = max(span.place for span in spans) + 1
    step = np.array([span.step for span in spans])
    place = np.array([span.place for span in spans])
    table = _table(step, place, steps, width, np.array([span.seconds for span in spans]))
    return {
        place: {f"device_{name}": getattr(Stats.of(column), name) for name in _ON_DEVICE}
        for place, column in enumerate(table.T)
    }


def _stacked(tables: Sequence[NDArray[Any]], width: int) -> NDArray[Any]:
    """Stack tables, of which those made earlier may lack columns."""
    return np.concatenate(
        [np.pad(table, ((0, 0), (0, width - table.shape[1]))) for table in tables]
    )
