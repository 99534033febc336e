"""What a network tells of the steps that were captured, and of those that could not be."""

from __future__ import annotations

import dataclasses

__all__ = ["CaptureRecord"]


@dataclasses.dataclass(frozen=True)
class CaptureRecord:
    """That steps were captured as one program, or why they were not.

    Attributes:
        number: How many records of the network there were, with this one.
        mode: The mode.
        epoch: The epoch.
        reason: Why what there was did not do.
        seconds: How long it took to trace the ops.
        compile_seconds: How long it took to compile what was traced.
        fallback: Why steps run op by op all the same; None where they do not.
    """

    number: int
    mode: str
    epoch: int
    reason: str
    seconds: float = 0.0
    compile_seconds: float = 0.0
    fallback: str | None = None
