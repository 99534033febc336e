"""Times of collective communication, and of the modules inside of models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from time import perf_counter
from typing import Any

import numpy as np

from fastnet.backend.model_metadata import name_of
from fastnet.distributed import processes_of
from fastnet.network import BaseNetwork
from fastnet.profiling.rows import Row, Section

# Communication is profiled in up to 3 skipped steps, but not in the first 2, which set it up.
_MAX_STEPS, _FIRST_STEP = 3, 2


class Communication:
    """Times the collectives of skipped steps with the framework's profiler, which is slow."""

    def __init__(self, network: BaseNetwork, skip: int) -> None:
        self._record: Callable[[], AbstractContextManager[dict[str, list[float]]]] | None = None
        if network.target_type == "torch" and processes_of("torch") is not None:
            from fastnet.backend.torch.processes import time_collectives

            self._record = time_collectives
        self._steps = range(max(_FIRST_STEP, skip - _MAX_STEPS), skip)
        self.found: list[dict[str, list[float]]] = []

    def run(self, number: int, network: BaseNetwork, batch: Mapping[str, Any]) -> None:
        """Run a step."""
        if self._record is None or number not in self._steps:
            network.run_step(batch)
            return
        with self._record() as found:
            network.run_step(batch)
        self.found.append(found)


class ModuleTimes:
    """Times the direct children of torch models, also of wrapped ones, with forward hooks.

    A module that several models share counts for the first.
    """

    def __init__(self, network: BaseNetwork) -> None:
        self._models = [(name_of(model), model) for model in network.models]
        self._current: defaultdict[str, list[float]] | None = None
        self.found: list[Mapping[str, Sequence[float]]] = []

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time the modules of a step, in which each may be called several times."""
        self._current = defaultdict(list)
        self.found.append(self._current)
        yield
        self._current = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Add hooks to the modules in a block."""
        titles: dict[Any, str] = {}
        from fastnet.backend.torch.wrappers import unwrap

        for model_name, model in self._models:
            for title, module in _called_children(unwrap(model), model_name):
                titles.setdefault(module, title)
        with ExitStack() as stack:
            for module, title in titles.items():
                started: list[float] = []

                def before(*_: Any, started: list[float] = started) -> None:
                    started.append(perf_counter())

                def after(*_: Any, started: list[float] = started, title: str = title) -> None:
                    seconds = perf_counter() - started.pop()
                    if self._current is not None:
                        self._current[title].append(seconds)

                stack.callback(module.register_forward_pre_hook(before).remove)
                stack.callback(module.register_forward_hook(after).remove)
            yield


def _called_children(module: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the direct children of a module; of those that are only containers, their own."""
    torch = import_module("torch")
    for child_name, child in module.named_children():
        title = f"{name}.{child_name}"
        if isinstance(child, torch.jit.ScriptModule):
            continue  # It takes no hooks.
        if type(child).forward is torch.nn.Module.forward:
            yield from _called_children(child, title)
        else:
            yield title, child


def add_rows(
    section: Section, kind: str, steps: Sequence[Mapping[str, Sequence[float]]]
) -> Section:
    """Return a section with rows of what was measured beside the step: times by name."""
    names = dict.fromkeys(name for step in steps for name in step)
    times = {name: [step.get(name, ()) for step in steps] for name in names}
    rows = [
        Row.of(
            np.array([sum(one) for one in each]),
            name,
            kind,
            index,
            section.name,
            sum(map(len, each)),
            in_step=False,
        )
        for index, (name, each) in enumerate(times.items())
    ]
    return replace(section, rows=(*section.rows, *rows))
