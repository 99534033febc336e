"""Records of the steps that a network traced and compiled, and of those that it could not."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fastnet.backend.model_metadata import name_of
from fastnet.distributed import is_main
from fastnet.network.step_times import StepTimes
from fastnet.types import Model
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
    """The latest trace records of a network; warns once of each fallback.

    Args:
        uncompiled: How steps run that are not compiled: "eagerly" or "as a graph".
    """

    def __init__(self, uncompiled: str) -> None:
        # A program that retraces in every step must not fill the memory with records.
        self.latest: deque[TraceRecord] = deque(maxlen=256)
        self._uncompiled = uncompiled
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
        mode = str(state["mode"])
        self.latest.append(
            TraceRecord(
                number=self.latest[-1].number + 1 if self.latest else 1,
                mode=mode,
                epoch=int(state["epoch"]),
                reason=reason,
                seconds=seconds,
                compile_seconds=compile_seconds,
                fallback=fallback,
                unverified=unverified,
            )
        )
        if fallback is not None and fallback not in self._warned:
            self._warned.add(fallback)
            warn(
                f"Steps of mode '{mode}' run {self._uncompiled}, and not as one "
                f"compiled program: {fallback}. network.traces lists all such reasons, and "
                "docs/compile.md what to do about each."
            )

    def last_compilation(self) -> float | None:
        """Return the seconds that the last program took to compile, or None."""
        seconds = (record.compile_seconds for record in reversed(self.latest))
        return next(filter(None, seconds), None)

    def warn_if_slower(self, mode: str, times: StepTimes) -> None:
        """Warn, once in a network, if compiled steps of a mode take longer than uncompiled ones."""
        slower = times.describe_if_slower(self._uncompiled)
        if slower is not None and not self._has_warned_of_times:
            self._has_warned_of_times = True
            # Entered with eager=True, TensorFlow runs no graph, but each operation by itself.
            or_eager = ", or enter it with eager=True" if self._uncompiled == "eagerly" else ""
            warn(f"In mode '{mode}' {slower}. Make the network without `compile`{or_eager}.")

    def summarize(self) -> None:
        """Print once what was compiled, to the standard error, if it took over two seconds."""
        seconds = sum(record.seconds + record.compile_seconds for record in self.latest)
        if self._is_summarized or seconds < 2.0 or sys.stderr is None or not is_main():
            return
        self._is_summarized = True
        fallbacks = sum(record.fallback is not None for record in self.latest)
        programs = sum(
            record.compile_seconds > 0 and record.fallback is None for record in self.latest
        )
        print(
            f"fastnet: compiled programs: {programs}, fallbacks: {fallbacks}, {seconds:.0f} s; see "
            "network.traces",
            file=sys.stderr,
        )


def describe_step(models: Iterable[Model], mode: str) -> str:
    """Describe a step by its models and mode, which distinguishes the steps of two networks."""
    names = ", ".join(f"'{name_of(model)}'" for model in models)
    return f"a step of {names} in mode '{mode}'" if names else f"a step in mode '{mode}'"


@contextmanager
def report_if_slow(task: str, last_seconds: float | None = None) -> Iterator[None]:
    """Print a line to the standard error if the body takes over two seconds.

    Args:
        task: A phrase for the task of the body, such as "compiling a step".
        last_seconds: How long that took the last time, if it was done before.
    """
    if last_seconds is not None:
        task = f"{task} ({last_seconds:.0f} s the last time)"
    stream = sys.stderr
    if stream is None or not is_main():
        yield
        return
    timer = threading.Timer(2.0, print, [f"fastnet: {task} ..."], {"file": stream})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
