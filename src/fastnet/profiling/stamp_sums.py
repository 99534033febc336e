"""Sums of time stamps: the time of each part of each step, less the cost of a stamp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastnet._stamps import StampLog
from fastnet.profiling.rows import ROW_KINDS, Row, Section
from fastnet.profiling.stamps import MEASURING, STAMP, DeviceSpan, StepPart, device_index

_MAX_FIRST_STAMPS = 100_000  # About as many are kept for a trace file.
# Kinds whose rows count once in a step, however many stamps it has of them.
_COUNTED_ONCE = ("dispatch", "grad_mode", "autocast", "tape", "conversion", "rest", MEASURING)


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


class StampSums:
    """The times of each part of each step."""

    def __init__(self, cost: StampCost) -> None:
        self._cost = cost
        # For each part: the cost of its stamp, whether it is counted once in a step, and whether it
        # is outside of minibatches.
        self._part_arrays: tuple[bytes, bytes, bytes] = b"", b"", b""
        self._times: list[NDArray[np.float64]] = []
        self._minibatches: list[NDArray[np.float64]] = []
        self._counts: list[NDArray[np.int64]] = []
        self._first_stamps: list[NDArray[Any]] = []

    def add(self, log: StampLog, parts: Sequence[StepPart]) -> None:
        """Move the stamps of whole steps from a log into the sums."""
        if not len(log):
            return
        if len(self._part_arrays[1]) != len(parts):
            costs = [self._cost.kernel if part.in_kernel else self._cost.python for part in parts]
            self._part_arrays = (
                np.array(costs).tobytes(),
                bytes(part.kind in _COUNTED_ONCE for part in parts),
                bytes(part.kind == MEASURING for part in parts),
            )
        steps, times, counts, minibatches = log.sum_up(*self._part_arrays)
        self._times.append(np.frombuffer(times).reshape(steps, -1))
        self._counts.append(np.frombuffer(counts, np.int64).reshape(1, -1))
        self._minibatches.append(np.frombuffer(minibatches).reshape(steps, -1))
        if sum(map(len, self._first_stamps)) < _MAX_FIRST_STAMPS:
            self._first_stamps.append(np.frombuffer(log.take(), STAMP))
        else:
            log.keep(0)

    def section(
        self,
        name: str,
        mode: str,
        eager: bool,
        parts: Sequence[StepPart],
        sizes: Mapping[tuple[str, str], int],
        device: Sequence[DeviceSpan] = (),
        trains: bool = False,
    ) -> Section | None:
        """Return the section of all steps, or None if there was no step."""
        if not self._times:
            return None
        times = _stack(self._times, len(parts))
        in_step = [part.kind != MEASURING for part in parts]
        step = Row.of(
            times[:, in_step].sum(axis=1),
            name="step",
            kind="step",
            index=None,
            section=name,
            count=len(times),
            in_step=False,
        )
        rows = [*self._part_rows(name, times, parts, sizes, device), *self._minibatch_rows(name)]
        return Section(name, mode, eager, len(times), step, tuple(rows), trains)

    def _part_rows(
        self,
        section: str,
        times: NDArray[np.float64],
        parts: Sequence[StepPart],
        sizes: Mapping[tuple[str, str], int],
        device: Sequence[DeviceSpan],
    ) -> list[Row]:
        """Return a row for each part of a step that has stamps."""
        counts = _stack(self._counts, len(parts)).sum(axis=0)
        device_stats = _device_stats(device, len(times))
        rows = [
            Row.of(
                part_times,
                name=part.name,
                kind=part.kind,
                index=part.index,
                section=section,
                count=int(count),
                in_step=part.kind != MEASURING,
                bytes=sizes.get((part.kind, part.name)),
                **device_stats.get(device_index(part, parts), {}),
            )
            for part, count, part_times in zip(parts, counts, times.T, strict=True)
            if count
        ]
        return sorted(rows, key=lambda row: (ROW_KINDS.index(row.kind), row.index or 0))

    def _minibatch_rows(self, section: str) -> list[Row]:
        """Return a row for each minibatch of a step."""
        times = _stack(self._minibatches, max(table.shape[1] for table in self._minibatches))
        counts = np.count_nonzero(times, axis=0).tolist()
        return [
            Row.of(
                minibatch_times,
                name=f"minibatch {index}",
                kind="minibatch",
                index=index,
                section=section,
                count=count,
                in_step=False,
            )
            for index, (minibatch_times, count) in enumerate(zip(times.T, counts, strict=True))
        ]

    def first_stamps(self) -> NDArray[Any]:
        """Return the stamps of the first steps, one by one."""
        return np.concatenate([np.empty(0, STAMP), *self._first_stamps])


def _device_stats(spans: Sequence[DeviceSpan], steps: int) -> dict[int | None, dict[str, float]]:
    """Return the statistics of each op on the device, by its index."""
    if not spans:
        return {}
    table = np.zeros((steps, max(span.index for span in spans) + 1))
    for span in spans:
        table[span.step, span.index] += span.seconds
    return {
        index: {"device_mean": float(times.mean()), "device_p99": float(np.percentile(times, 99))}
        for index, times in enumerate(table.T)
    }


def _stack(tables: Sequence[NDArray[Any]], width: int) -> NDArray[Any]:
    """Stack tables, of which earlier ones may have fewer columns."""
    return np.concatenate(
        [np.pad(table, ((0, 0), (0, width - table.shape[1]))) for table in tables]
    )
