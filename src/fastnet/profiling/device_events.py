"""Times of ops on a GPU, from a pair of events around each."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from fastnet.network import BaseNetwork
from fastnet.profiling.stamps import DeviceSpan

if TYPE_CHECKING:
    from torch.cuda import Event

_MAX_PENDING = 100_000  # Reading events waits for the device.


class DeviceEvents:
    """Records an event before and after each op.

    `mark` records an event, and `synchronize` waits until the device has reached all of them.
    """

    def __init__(self, mark: Callable[[], Event], synchronize: Callable[[], None]) -> None:
        self._mark = mark
        self._synchronize = synchronize
        self._step: list[tuple[int, Event, Event]] = []
        self._pending: list[tuple[int, int, Event, Event]] = []
        self._open: Event | None = None
        self._spans: list[DeviceSpan] = []
        self._base = mark()
        self._base_at = perf_counter()

    def before(self, index: int) -> None:
        """Record that an op begins."""
        self._open = self._mark()

    def after(self, index: int) -> None:
        """Record that an op ends."""
        end = self._mark()
        assert self._open is not None
        self._step.append((index, self._open, end))

    def end_step(self, number: int) -> None:
        """Keep the events of a step."""
        self._pending += [(number, index, start, end) for index, start, end in self._step]
        self._step.clear()
        if len(self._pending) > _MAX_PENDING:
            self._read()

    def drop_step(self) -> None:
        """Drop the events of a step that failed."""
        self._step.clear()

    def spans(self) -> list[DeviceSpan]:
        """Wait for the device, and return the times of ops."""
        self._read()
        return self._spans

    def _read(self) -> None:
        if not self._pending:
            return
        self._synchronize()
        for step, index, start, end in self._pending:
            begins = self._base_at + self._base.elapsed_time(start) / 1e3
            self._spans.append(DeviceSpan(step, index, begins, start.elapsed_time(end) / 1e3))
        self._pending.clear()


def device_events_for(network: BaseNetwork) -> Callable[[], DeviceEvents] | None:
    """Return a function that makes the `DeviceEvents` of a network, or None without CUDA."""
    if network.target_type != "torch" or network.device.type != "cuda":
        return None
    import torch

    device, cuda = network.device, cast("Any", torch.cuda)

    def mark() -> Event:
        event: Event = cuda.Event(enable_timing=True)
        # The network's device need not be the current one.
        event.record(cuda.current_stream(device))
        return event

    return lambda: DeviceEvents(mark, lambda: cuda.synchronize(device))
