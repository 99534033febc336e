"""Times the first steps of a program and uncompiled ones, to warn of a program that is slower."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

R = TypeVar("R")

_UNCOMPILED_STEPS = 2
_COMPILED_STEPS = 20
# Below this ratio of the fastest steps, a difference may be that of two moments.
_MIN_RATIO = 1.2


class StepTimes:
    """The seconds of the first steps of a program, and of uncompiled steps of its signature."""

    def __init__(self) -> None:
        self._uncompiled: list[float] = []
        self._compiled: list[float] = []

    @property
    def awaits_uncompiled(self) -> bool:
        """Whether the next step is to run uncompiled, to be timed."""
        return len(self._uncompiled) < _UNCOMPILED_STEPS

    @property
    def is_complete(self) -> bool:
        """Whether enough steps were timed."""
        return not self.awaits_uncompiled and len(self._compiled) >= _COMPILED_STEPS

    def run_uncompiled(self, step: Callable[[], R]) -> R:
        """Run and time an uncompiled step."""
        started = perf_counter()
        result = step()
        self._uncompiled.append(perf_counter() - started)
        return result

    def add_compiled(self, seconds: float) -> None:
        """Note how long a compiled step took."""
        self._compiled.append(seconds)

    def describe_if_slower(self, uncompiled: str) -> str | None:
        """Describe both times if compiled steps take longer.

        Args:
            uncompiled: How uncompiled steps run: "eagerly" or "as a graph".
        """
        fastest, fastest_uncompiled = min(self._compiled), min(self._uncompiled)
        if fastest < _MIN_RATIO * fastest_uncompiled:
            return None
        return (
            f"a compiled step takes {_format(fastest)}, and one that runs {uncompiled} "
            f"{_format(fastest_uncompiled)}, the fastest of {len(self._compiled)} and "
            f"{len(self._uncompiled)} steps"
        )


def _format(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
