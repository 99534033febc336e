"""Sums of stamps: what each part of each step took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastnet._stamps import StampLog
from fastnet.profiling.blocks import Blocks
from fastnet.profiling.clock import StampCost
from fastnet.profiling.pace import Pace
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


@dataclass(frozen=True)
class _Columns:
    """What there is to know of a table's columns, one for each part, as `StampLog.sum_up` takes it.

    Attributes:
        count: How many parts there are.
        costs: What a stamp of each column takes.
        once: Whether one happens once in a step, however many stamps it has.
        beside: Whether a column is no part of a step.
    """

    count: int
    costs: bytes
    once: bytes
    beside: bytes

    @classmethod
    def of(cls, parts: Sequence[Part], cost: StampCost) -> _Columns:
        """Look at parts: it takes as long as summing up some steps, and parts seldom change."""
        return cls(
            len(parts),
            np.array([cost.of(part.in_kernel) for part in parts], float).tobytes(),
            # what lies between other things happens once in a step
            bytes(part.kind in _BETWEEN for part in parts),
            bytes(part.kind == _BESIDE for part in parts),
        )


class Sums:
    """What each part of each step took, from stamps.

    Args:
        cost: What making a stamp takes, and is left out.
    """

    def __init__(self, cost: StampCost) -> None:
        self._cost = cost
        self._columns: _Columns | None = None
        self._times: list[NDArray[np.float64]] = []
        self._minibatches: list[NDArray[np.float64]] = []
        self._counts: list[NDArray[np.int64]] = []
        self._kept: list[NDArray[Any]] = []

    def add(self, log: StampLog, parts: Sequence[Part]) -> None:
        """Take stamps of whole steps out of a log, and add them.

        Args:
            log: The log.
            parts: What rows are of.
        """
        if not len(log):
            return
        columns = self._columns
        if columns is None or columns.count != len(parts):
            columns = self._columns = _Columns.of(parts, self._cost)
        steps, times, counts, minibatches = log.sum_up(columns.costs, columns.once, columns.beside)
        self._times.append(np.frombuffer(times).reshape(steps, -1))
        self._counts.append(np.frombuffer(counts, np.int64).reshape(1, -1))
        self._minibatches.append(np.frombuffer(minibatches).reshape(steps, -1))
        if sum(map(len, self._kept)) < _MOST_KEPT:
            self._kept.append(np.frombuffer(log.take(), _STAMP))
        else:
            log.keep(0)

    def section(
        self,
        name: str,
        mode: str,
        eager: bool,
        parts: Sequence[Part],
        sizes: Mapping[tuple[str, str], int],
        device: Sequence[DeviceSpan] = (),
        pace: Pace | None = None,
        period: int = 1,
    ) -> Section | None:
        """Sum all up.

        Args:
            name: What to call the section.
            mode: The mode.
            eager: Whether ops ran one by one.
            parts: What rows are of.
            sizes: How many bytes there are under a key, by kind and name of its part.
            device: What ops took on the device, if it was measured.
            pace: How fast the machine was at each step, if it was measured.
            period: After how many steps the ops come round.

        Returns:
            The section; None if there was no step.
        """
        if not self._times:
            return None
        times = _stacked(self._times, len(parts))
        counts = _stacked(self._counts, len(parts)).sum(axis=0)
        inside = [part.kind != _BESIDE for part in parts]
        on_device = _device_stats(device, len(times))
        whole = times[:, inside].sum(axis=1)
        blocks = Blocks.of(pace, len(times), period)
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
                blocks=blocks.medians(column),
                **on_device.get(_place_on_device(part, parts), {}),
            )
            for part, count, column in zip(parts, counts, times.T, strict=True)
            if count
        ]
        rows.sort(key=lambda row: (_ORDER.index(row.kind), row.place or 0))
        step = Row(
            "step",
            "step",
            None,
            name,
            len(times),
            **vars(Stats.of(whole)),
            in_step=False,
            blocks=blocks.medians(whole),
        )
        rows += self._minibatch_rows(name)
        best = None if pace is None else pace.best()
        return Section(name, mode, eager, len(times), step, tuple(rows), best, blocks.slowness)

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
        """Return the stamps of the first steps, one by one."""
        return np.concatenate([np.empty(0, _STAMP), *self._kept])


def _place_on_device(part: Part, parts: Sequence[Part]) -> int | None:
    """Return the place that a device's times of a part have, or None if it has none."""
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
    seconds = np.array([span.seconds for span in spans])
    cells = step * width + place
    table: NDArray[Any] = np.bincount(cells, seconds, minlength=steps * width)
    return {
        place: {f"device_{name}": getattr(Stats.of(column), name) for name in _ON_DEVICE}
        for place, column in enumerate(table.reshape(steps, width).T)
    }


def _stacked(tables: Sequence[NDArray[Any]], width: int) -> NDArray[Any]:
    """Stack tables, of which those made earlier may lack columns."""
    return np.concatenate(
        [np.pad(table, ((0, 0), (0, width - table.shape[1]))) for table in tables]
    )
