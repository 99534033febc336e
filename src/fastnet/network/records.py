"""What a network tells of the steps that were traced and compiled, and of those that were not."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any

from fastnet.util.warnings import warn

__all__ = ["Records", "TraceRecord"]

# the last ones tell why; a program that traces without end must not fill the memory with reasons
_MOST_RECORDS = 256


@dataclasses.dataclass(frozen=True)
class TraceRecord:
    """That ops were traced, and perhaps compiled, and why; or why they were not.

    Attributes:
        number: How many records of the network there were, with this one.
        mode: The mode.
        epoch: The epoch.
        reason: Why what there was did not do.
        seconds: How long it took to trace the ops; in TensorFlow, with the first run of what was
            traced, when TensorFlow works it out for the device.
        compile_seconds: How long it took to compile what was traced; in TensorFlow, with the first
            run of that.
        fallback: Why steps do not run compiled though `compile` asks for it; None where they do, or
            where it does not ask.
        part: The first and the last of the ops that are told of, where these are not all of a step;
            None where they are.
    """

    number: int
    mode: str
    epoch: int
    reason: str
    seconds: float = 0.0
    compile_seconds: float = 0.0
    fallback: str | None = None
    part: str | None = None


class Records:
    """What a network tells of its traced and compiled steps.

    Args:
        instead: How steps run that cannot be compiled, such as "op by op".
        of: What is told of, where that is not all of a step.

    Attributes:
        kept: The last of the records.
    """

    def __init__(self, instead: str, of: str | None = None) -> None:
        self.kept: deque[TraceRecord] = deque(maxlen=_MOST_RECORDS)
        self._instead = instead
        self._of = of
        self._told: set[str] = set()

    def of(self, what: str) -> Records:
        """Return what tells of a part of steps, in the same place.

        Args:
            what: Which part, such as "ops 0 to 3".
        """
        part = Records(self._instead, what)
        part.kept, part._told = self.kept, self._told
        return part

    def add(
        self,
        context: Mapping[str, Any],
        reason: str,
        seconds: float = 0.0,
        compile_seconds: float = 0.0,
        fallback: str | None = None,
    ) -> None:
        """Take something down; what steps fall back for is warned of, once.

        Args:
            context: The context of the opening.
            reason: Why what there was did not do.
            seconds: How long it took to trace.
            compile_seconds: How long it took to compile.
            fallback: Why steps do not run compiled.
        """
        number = self.kept[-1].number + 1 if self.kept else 1
        mode, epoch = str(context["mode"]), int(context["epoch"])
        self.kept.append(
            TraceRecord(number, mode, epoch, reason, seconds, compile_seconds, fallback, self._of)
        )
        if fallback is not None and fallback not in self._told:
            self._told.add(fallback)
            warn(
                f"{'Steps' if self._of is None else self._of} of mode '{mode}' run "
                f"{self._instead}, and not as one compiled program: "
                f"{fallback}. network.traces tells of all such reasons; open the network with "
                "eager=True, or make it without `compile`, to have no such warning.",
            )
