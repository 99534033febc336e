"""Times of the collective communication of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from fastnet.distributed import processes_of
from fastnet.network import BaseNetwork

_MAX_STEPS = 3
_FIRST_STEP = 2  # The steps before set up the communication.


class CollectiveTimer:
    """Times the collectives of skipped steps with the framework's profiler, which is slow."""

    def __init__(self, network: BaseNetwork, skip: int) -> None:
        self._record: Callable[[], AbstractContextManager[dict[str, list[float]]]] | None = None
        if network.target_type == "torch" and processes_of("torch") is not None:
            from fastnet.backend.torch.processes import time_collectives

            self._record = time_collectives
        self._timed_steps = range(max(_FIRST_STEP, skip - _MAX_STEPS), skip)
        self.steps: list[dict[str, list[float]]] = []

    def run_step(self, number: int, network: BaseNetwork, batch: Mapping[str, Any]) -> None:
        """Run a step, and time its collectives if it is among the last of the skipped steps."""
        if self._record is None or number not in self._timed_steps:
            network.run_step(batch)
            return
        with self._record() as times:
            network.run_step(batch)
        self.steps.append(times)
