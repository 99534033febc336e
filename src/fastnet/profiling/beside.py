"""Times of collective communication, and of the modules inside of models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from fastnet.backend.dispatch import backend_module
from fastnet.backend.model_metadata import name_of
from fastnet.distributed import processes_of
from fastnet.network import BaseNetwork
from fastnet.profiling.rows import Row, Section, Stats

# Communication is profiled in up to 3 skipped steps, but not in the first 2, which set it up.
_MAX_STEPS, _FIRST_STEP = 3, 2


class Communication:
    """Times the collectives of skipped steps with the framework's profiler, which is slow."""

    def __init__(self, network: BaseNetwork, skip: int) -> None:
        self._record: Callable[[], AbstractContextManager[dict[str, list[float]]]] | None = None
        if network.target_type == "torch" and processes_of("torch") is not None:
            self._record = backend_module("torch", "ranges").communication
        self._steps = range(max(_FIRST_STEP, skip - _MAX_STEPS), skip)
        self._found: list[dict[str, list[float]]] = []

    def run(self, number: int, network: BaseNetwork, batch: Mapping[str, Any]) -> None:
        """Run a step."""
        if self._record is None or number not in self._steps:
            network.run_step(batch)
            return
        with self._record() as found:
            network.run_step(batch)
        self._found.append(found)

    def times(self) -> dict[str, list[list[float]]]:
        """Return the times of each kind of collective, step by step."""
        names = dict.fromkeys(name for found in self._found for name in found)
        return {name: [found.get(name, []) for found in self._found] for name in names}


class ModuleTimes:
    """Times the direct children of torch models, inside of wrappers, with forward hooks."""

    def __init__(self, network: BaseNetwork) -> None:
        self._models = [(name_of(model), model) for model in network.models]
        self._found: defaultdict[str, list[list[float]]] = defaultdict(list)

    def start(self) -> None:
        """Drop the times of skipped steps."""
        self._found.clear()

    def times(self) -> dict[str, list[list[float]]]:
        """Return the times of each module, call by call."""
        return dict(self._found)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Time the modules in a block."""
        handles = []
        innermost = backend_module("torch", "names").innermost
        for model_name, model in self._models:
            for name, module in innermost(model).named_children():
                started: list[float] = []

                def before(*_: Any, started: list[float] = started) -> None:
                    started.append(perf_counter())

                def after(
                    *_: Any, started: list[float] = started, title: str = f"{model_name}.{name}"
                ) -> None:
                    self._found[title].append([perf_counter() - started.pop()])

                handles += [
                    module.register_forward_pre_hook(before),
                    module.register_forward_hook(after),
                ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def add_rows(section: Section, kind: str, times: Mapping[str, Sequence[list[float]]]) -> Section:
    """Return a section with rows of what was measured beside the step."""
    rows = [
        Row(
            name,
            kind,
            index,
            section.name,
            sum(map(len, each)),
            **vars(Stats.of(np.array([sum(one) for one in each]))),
            in_step=False,
        )
        for index, (name, each) in enumerate(times.items())
    ]
    return replace(section, rows=(*section.rows, *rows))
