"""The time stamps of steps, and the parts of a step that they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The stamp that a step begins with; the time before it belongs to no step.
BEGIN = -1
# The kind of the time that the measuring takes, which is not part of the step.
MEASURING = "measuring"
STAMP = np.dtype([("at", "f8"), ("row", "i4"), ("minibatch", "i4")])
"""The dtype of the stamps that `StampLog.take` returns.

`row` is the index of a `StepPart`, or `BEGIN`. `minibatch` counts from 1; 0 is outside of them.
"""


@dataclass(frozen=True)
class StepPart:
    """A part of a step, which becomes a row of the profile; `in_kernel` if the kernel stamps it."""

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
    parts: tuple[StepPart, ...]
    stamps: NDArray[Any]
    device: tuple[DeviceSpan, ...] = ()

    @property
    def ops(self) -> dict[int, str]:
        """The names of ops, and of the deferred updates after them, by index."""
        names = {device_index(part, self.parts): part.name for part in self.parts}
        return {index: name for index, name in names.items() if index is not None}


def device_index(part: StepPart, parts: Sequence[StepPart]) -> int | None:
    """Return the index of a part in the device's times, or None if it has none."""
    if part.kind == "deferred":
        return sum(step_part.kind == "op" for step_part in parts)
    return part.index if part.kind == "op" else None
