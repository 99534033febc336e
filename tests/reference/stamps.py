"""When each part of a step was over."""

from __future__ import annotations

import struct
import time


class StampLog:
    def __init__(self) -> None:
        self.part = 0
        self._stamps: list[tuple[float, int, int]] = []

    def __len__(self) -> int:
        return len(self._stamps)

    def stamp(self, row: int) -> None:
        self._stamps.append((time.perf_counter(), row, self.part))

    def stamp_at(self, row: int, at: float) -> None:
        latest = self._stamps[-1][0] if self._stamps else at
        self._stamps.append((max(at, latest), row, self.part))

    def stamp_many(self, row: int, count: int) -> None:
        for _ in range(count):
            self.stamp(row)

    def keep(self, count: int) -> None:
        self.part = 0
        if count >= 0:
            del self._stamps[count:]

    def take(self) -> bytes:
        taken = b"".join(struct.pack("=dii", *stamp) for stamp in self._stamps)
        self.keep(0)
        return taken
