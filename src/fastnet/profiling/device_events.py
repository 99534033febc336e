"""What ops take on a GPU: a pair of events around each, read when all is over."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol, cast

from fastnet.network import BaseNetwork
from fastnet.profiling.sums import DeviceSpan

__all__ = ["DeviceEvents", "device_events_for"]

# events are read before they are too many, at the price of another wait
_MOST_PENDING = 100_000


class Event(Protocol):
    """A moment on a device, as `torch.cuda.Event`."""

    def record(self, stream: Any) -> None:
        """Note when the device gets here with what it was told on a stream."""

    def elapsed_time(self, other: Any) -> float:
        """Return the milliseconds from this to a later event."""


class DeviceEvents:
    """Records an event before and after each op.

    Args:
        mark: Records an event where the device has got to when it has done what it was told so far.
        synchronize: Waits until the device has reached all of them.
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

    def before(self, place: int) -> None:
        """Record that an op begins.

        Args:
            place: The op's place.
        """
        self._open = self._mark()

    def after(self, place: int) -> None:
        """Record that it ends.

        Args:
            place: The op's place.
        """
        end = self._mark()
        assert self._open is not None
        self._step.append((place, self._open, end))

    def end_step(self, number: int) -> None:
        """Keep the events of a step.

        Args:
            number: Its number.
        """
        self._pending += [(number, *each) for each in self._step]
        self._step.clear()
        if len(self._pending) > _MOST_PENDING:
            self._read()

    def drop_step(self) -> None:
        """Forget the events of a step that failed."""
        self._step.clear()

    def _read(self) -> None:
        if not self._pending:
            return
        self._synchronize()
        for step, place, start, end in self._pending:
            begins = self._base_at + self._base.elapsed_time(start) / 1e3
            self._spans.append(DeviceSpan(step, place, begins, start.elapsed_time(end) / 1e3))
        self._pending.clear()

    def spans(self) -> list[DeviceSpan]:
        """Return what ops took, after one wait for the device."""
        self._read()
        return self._spans


def device_events_for(network: BaseNetwork) -> Callable[[], DeviceEvents] | None:
    """Return the function that makes events for a network's device.

    Args:
        network: The network.

    Returns:
        A function that makes a `DeviceEvents`, or None where ops run on the host's own time.
    """
    if network.target_type != "torch" or network.device.type != "cuda":
        return None
    import torch

    device, cuda = network.device, cast("Any", torch.cuda)

    def mark() -> Event:
        event: Event = cuda.Event(enable_timing=True)
        # of the network's own device, which need not be the current one
        event.record(cuda.current_stream(device))
        return event

    return lambda: DeviceEvents(mark, lambda: cuda.synchronize(device))
