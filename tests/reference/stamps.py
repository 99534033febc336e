"""Time stamps as a list of tuples."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from itertools import pairwise


class StampLog:
    def __init__(self) -> None:
        self.minibatch = 0
        self._stamps: list[tuple[float, int, int]] = []

    def __len__(self) -> int:
        return len(self._stamps)

    def stamp(self, row: int) -> None:
        self._stamps.append((time.perf_counter(), row, self.minibatch))

    def stamp_at(self, row: int, at: float) -> None:
        if not abs(at) < 9e9:
            raise ValueError(f"{at!r} is no time")
        latest = self._stamps[-1][0] if self._stamps else at
        self._stamps.append((max(at, latest), row, self.minibatch))

    def stamp_many(self, row: int, count: int) -> None:
        for _ in range(count):
            self.stamp(row)

    def keep(self, count: int) -> None:
        self.minibatch = 0
        if count >= 0:
            del self._stamps[count:]

    def sum_up(
        self, costs: bytes, once: bytes, outside_minibatches: bytes
    ) -> tuple[int, bytes, bytes, bytes]:
        width = len(once)
        if len(costs) != 8 * width or len(outside_minibatches) != width:
            raise ValueError(
                f"{width} rows, costs of {len(costs) / 8:g}, outside_minibatches of "
                f"{len(outside_minibatches)}"
            )
        if not self._stamps:
            raise ValueError("there are no stamps to sum up")
        cost = [each for (each,) in struct.iter_unpack("=d", costs)]
        n_minibatches = max((minibatch for _, _, minibatch in self._stamps[1:]), default=0)
        times, minibatch_times = [[0.0] * width], [[0.0] * n_minibatches]
        seen: list[list[int]] = [[]]
        for (before, _, _), (at, row, minibatch) in pairwise(self._stamps):
            if minibatch < 0:
                raise ValueError(f"a negative minibatch: {minibatch}")
            if row == -1:
                times.append([0.0] * width)
                minibatch_times.append([0.0] * n_minibatches)
                seen.append([])
                continue
            if not 0 <= row < width:
                raise ValueError(f"row {row} of {width} rows")
            span = at - before - cost[row]
            times[-1][row] += span
            seen[-1].append(row)
            if minibatch and not outside_minibatches[row]:
                minibatch_times[-1][minibatch - 1] += span
        counts = [
            sum(min(step.count(row), 1) if once[row] else step.count(row) for step in seen)
            for row in range(width)
        ]
        tables = _packed("d", *times), _packed("q", counts), _packed("d", *minibatch_times)
        return len(times), *tables

    def take(self) -> bytes:
        taken = b"".join(struct.pack("=dii", *stamp) for stamp in self._stamps)
        self.keep(0)
        return taken


def _packed(kind: str, *lines: Sequence[float]) -> bytes:
    return b"".join(struct.pack(f"={len(line)}{kind}", *line) for line in lines)
