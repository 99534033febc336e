"""Sums of time stamps: the time of each part of each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastnet._stamps import StampLog
from fastnet.profiling.rows import Row, Section

# The stamp that a step begins with; the time before it belongs to no step.
BEGIN = -1
_STAMP = np.dtype([("at", "f8"), ("row", "i4"), ("part", "i4")])
_MAX_KEPT = 100_000  # stamps kept for a trace file

_MEASURING = "measuring"  # Time that the measuring takes, which is not part of the step.
# Kinds of which a step has at most one, however many stamps.
_ONCE = ("dispatch", "setting", "autocast", "tape", "conversion", "rest", _MEASURING)
_ORDER = (
    *("cut", "tape", "autocast", "setting", "input", "dispatch", "op", "trace", "graph"),
    *("deferred", "merge", "output", "release", "wait", "join", "conversion", "postprocessing"),
    *("rest", _MEASURING),
)


@dataclass(frozen=True)
class StampCost:
    """The seconds that a stamp takes: made in the kernel, and by a call from Python."""

    kernel: float
    python: float

    @classmethod
    def measure(cls) -> StampCost:
        """Return the minimum of many short rounds, which is little disturbed."""
        log, count = StampLog(), 100
        kernel = python = float("inf")
        for _ in range(200):
            log.keep(0)
            started = perf_counter()
            log.stamp_many(0, count)
            kernel = min(kernel, perf_counter() - started)
            stamp = log.stamp
            log.keep(0)
            started = perf_counter()
            for _ in range(count):
                stamp(0)
            python = min(python, perf_counter() - started)
        return cls(kernel / count, python / count)


@dataclass(frozen=True)
class Part:
    """A part of a step that stamps belong to; `in_kernel` if the kernel makes them."""

    kind: str
    name: str
    index: int | None
    in_kernel: bool = False


@dataclass(frozen=True)
class DeviceSpan:
    """The time of an op on a device; the index after the last op is that of deferred updates."""

    step: int
    index: int
    start: float
    seconds: float


@dataclass(frozen=True)
class Timeline:
    """The stamps of the first steps of a section, and what ops took on the device in them."""

    section: str
    parts: tuple[Part, ...]
    stamps: NDArray[Any]
    device: tuple[DeviceSpan, ...] = ()

    @property
    def ops(self) -> dict[int, str]:
        """The names of ops, and of the deferred updates after them, by index."""
        names = {_device_index(part, self.parts): part.name for part in self.parts}
        return {index: name for index, name in names.items() if index is not None}


class Sums:
    """The times of each part of each step."""

    def __init__(self, cost: StampCost) -> None:
        self._cost = cost
        self._columns: tuple[bytes, bytes, bytes] = b"", b"", b""
        self._times: list[NDArray[np.float64]] = []
        self._minibatches: list[NDArray[np.float64]] = []
        self._counts: list[NDArray[np.int64]] = []
        self._kept: list[NDArray[Any]] = []

    def add(self, log: StampLog, parts: Sequence[Part]) -> None:
        """Move the stamps of whole steps from a log into the sums."""
        if not len(log):
            return
        if len(self._columns[1]) != len(parts):
            costs = [self._cost.kernel if one.in_kernel else self._cost.python for one in parts]
            self._columns = (
                np.array(costs).tobytes(),
                bytes(part.kind in _ONCE for part in parts),
                bytes(part.kind == _MEASURING for part in parts),
            )
        steps, times, counts, minibatches = log.sum_up(*self._columns)
        self._times.append(np.frombuffer(times).reshape(steps, -1))
        self._counts.append(np.frombuffer(counts, np.int64).reshape(1, -1))
        self._minibatches.append(np.frombuffer(minibatches).reshape(steps, -1))
        if sum(map(len, self._kept)) < _MAX_KEPT:
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
        trains: bool = False,
    ) -> Section | None:
        """Return the section of all steps, or None if there was no step."""
        if not self._times:
            return None
        times = _stack(self._times, len(parts))
        counts = _stack(self._counts, len(parts)).sum(axis=0)
        inside = [part.kind != _MEASURING for part in parts]
        on_device = _device_stats(device, len(times))
        rows = [
            Row.of(
                column,
                part.name,
                part.kind,
                part.index,
                name,
                int(count),
                in_step=part.kind != _MEASURING,
                bytes=sizes.get((part.kind, part.name)),
                **on_device.get(_device_index(part, parts), {}),
            )
            for part, count, column in zip(parts, counts, times.T, strict=True)
            if count
        ]
        rows.sort(key=lambda row: (_ORDER.index(row.kind), row.index or 0))
        minibatches = _stack(self._minibatches, max(one.shape[1] for one in self._minibatches))
        ran = np.count_nonzero(minibatches, axis=0).tolist()
        rows += [
            Row.of(column, f"minibatch {index}", "minibatch", index, name, count, in_step=False)
            for index, (column, count) in enumerate(zip(minibatches.T, ran, strict=True))
        ]
        whole = times[:, inside].sum(axis=1)
        step = Row.of(whole, "step", "step", None, name, len(times), in_step=False)
        return Section(name, mode, eager, len(times), step, tuple(rows), trains)

    def first_stamps(self) -> NDArray[Any]:
        """Return the stamps of the first steps, one by one."""
        return np.concatenate([np.empty(0, _STAMP), *self._kept])


def _device_index(part: Part, parts: Sequence[Part]) -> int | None:
    """Return the index of a part in the device's times, or None if it has none."""
    if part.kind == "deferred":
        return sum(other.kind == "op" for other in parts)
    return part.index if part.kind == "op" else None


def _device_stats(spans: Sequence[DeviceSpan], steps: int) -> dict[int | None, dict[str, float]]:
    """Return the statistics of each op on the device, by its index."""
    if not spans:
        return {}
    table = np.zeros((steps, max(span.index for span in spans) + 1))
    for span in spans:
        table[span.step, span.index] += span.seconds
    return {
        index: {"device_mean": float(one.mean()), "device_p99": float(np.percentile(one, 99))}
        for index, one in enumerate(table.T)
    }


def _stack(tables: Sequence[NDArray[Any]], width: int) -> NDArray[Any]:
    """Stack tables, of which earlier ones may have fewer columns."""
    return np.concatenate(
        [np.pad(table, ((0, 0), (0, width - table.shape[1]))) for table in tables]
    )
