"""Records of the steps that a network traced and compiled, and of those that it could not."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fastnet.distributed import is_main
from fastnet.network.step_times import StepTimes
from fastnet.util.warnings import warn


@dataclasses.dataclass(frozen=True)
class TraceRecord:
    """A record of why ops were traced or compiled, or why they were not.

    Attributes:
        number: The number of this record in its network, counted from 1.
        mode: The mode.
        epoch: The epoch.
        reason: Why no existing trace could be used.
        seconds: The seconds spent on tracing; in TensorFlow with the first run of the trace.
        compile_seconds: The seconds spent on compiling; in TensorFlow with the first run.
        fallback: Why steps do not run compiled although `compile` asks for it; None otherwise.
        unverified: Why the first step of a compiled program was not verified; None otherwise.
    """

    number: int
    mode: str
    epoch: int
    reason: str
    seconds: float = 0.0
    compile_seconds: float = 0.0
    fallback: str | None = None
    unverified: str | None = None


class Records:
    """The latest trace records of a network; warns once of each fallback, which runs `instead`."""

    def __init__(self, instead: str) -> None:
        # A program that retraces in every step must not fill the memory with records.
        self.latest: deque[TraceRecord] = deque(maxlen=256)
        self._instead = instead
        self._warned: set[str] = set()
        self._is_summarized = False
        self._has_warned_of_times = False

    def add(
        self,
        state: Mapping[str, Any],
        reason: str,
        seconds: float = 0.0,
        compile_seconds: float = 0.0,
        fallback: str | None = None,
        unverified: str | None = None,
    ) -> None:
        """Add a record, and warn if its fallback is new."""
        number = self.latest[-1].number + 1 if self.latest else 1
        mode, epoch = str(state["mode"]), int(state["epoch"])
        found = reason, seconds, compile_seconds, fallback, unverified
        self.latest.append(TraceRecord(number, mode, epoch, *found))
        if fallback is not None and fallback not in self._warned:
            self._warned.add(fallback)
            warn(
                f"Steps of mode '{mode}' run {self._instead}, and not as one "
                f"compiled program: {fallback}. network.traces lists all such reasons, and "
                "docs/compile.md what to do about each."
            )

    def last_compilation(self) -> float | None:
        """Return the seconds that the last program took to compile, or None."""
        seconds = (one.compile_seconds for one in reversed(self.latest) if one.compile_seconds)
        return next(seconds, None)

    def warn_if_slower(self, state: Mapping[str, Any], times: StepTimes) -> None:
        """Warn, once in a network, if compiled steps take longer than others."""
        slower = times.describe_if_slower(self._instead)
        if slower is not None and not self._has_warned_of_times:
            self._has_warned_of_times = True
            warn(
                f"In mode '{state['mode']}' {slower}. Make the network without `compile`, or enter "
                "it with eager=True."
            )

    def summarize(self) -> None:
        """Print once what was compiled, to the standard error, if it took over two seconds."""
        seconds = sum(one.seconds + one.compile_seconds for one in self.latest)
        if self._is_summarized or seconds < 2.0 or sys.stderr is None or not is_main():
            return
        self._is_summarized = True
        fallbacks = sum(one.fallback is not None for one in self.latest)
        programs = sum(one.compile_seconds > 0 and not one.fallback for one in self.latest)
        print(
            f"fastnet: compiled programs: {programs}, fallbacks: {fallbacks}, {seconds:.0f} s; see "
            "network.traces",
            file=sys.stderr,
        )


@contextmanager
def report_if_slow(what: str, last_seconds: float | None = None) -> Iterator[None]:
    """Print a line to the standard error if the body takes over two seconds.

    Args:
        what: What the body does.
        last_seconds: How long that took the last time, if it was done before.
    """
    if last_seconds is not None:
        what = f"{what}, which took {last_seconds:.0f} s the last time,"
    stream = sys.stderr
    if stream is None or not is_main():
        yield
        return
    timer = threading.Timer(2.0, print, [f"fastnet: {what} ..."], {"file": stream})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
