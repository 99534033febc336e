"""What processes that train together take to communicate, by the framework's own profiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from fastnet.distributed import processes_of
from fastnet.network import BaseNetwork
from fastnet.profiling.result import Profile
from fastnet.profiling.rows import Row, Stats

__all__ = ["Communication"]

# the first steps are unlike others: engines arrange there how they go on
_MOST, _FIRST = 3, 2


class Communication:
    """Takes the times of collectives in steps that are not measured, which a profiler slows down.

    Args:
        network: The network.
        skip: How many steps are not measured.
    """

    def __init__(self, network: BaseNetwork, skip: int) -> None:
        part = processes_of(network.target_type)
        self._record: Callable[[], AbstractContextManager[dict[str, list[float]]]] | None = getattr(
            part, "communication", None
        )
        self._steps = range(max(_FIRST, skip - _MOST), skip) if self._record is not None else ()
        self._told: list[dict[str, list[float]]] = []

    def run(self, count: int, network: BaseNetwork, batch: Mapping[str, Any]) -> None:
        """Run a step.

        Args:
            count: How many there were before.
            network: The network.
            batch: Its batch.
        """
        if count not in self._steps or self._record is None:
            network.run_step(batch)
            return
        with self._record() as told:
            network.run_step(batch)
        self._told.append(told)

    def add_to(self, profile: Profile) -> None:
        """Add a row for each kind of collective to a profile of one mode.

        Args:
            profile: The profile.
        """
        names = dict.fromkeys(name for told in self._told for name in told)
        if not names or len(profile.sections) != 1:
            return
        section = profile.sections[0]
        rows = []
        for place, name in enumerate(names):
            each = [told.get(name, []) for told in self._told]
            seconds = np.array([sum(one) for one in each], dtype=np.float64)
            rows.append(
                Row(
                    name,
                    "communication",
                    place,
                    section.name,
                    sum(map(len, each)),
                    **vars(Stats.of(seconds)),
                    in_step=False,
                )
            )
        profile.sections = (replace(section, rows=(*section.rows, *rows)),)
