"""Times of the modules inside of models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from time import perf_counter
from typing import Any

from fastnet.backend.model_metadata import name_of
from fastnet.network import BaseNetwork


class ModuleTimes:
    """Times the direct children of torch models, also of wrapped ones, with forward hooks.

    A module that several models share counts for the first.
    """

    def __init__(self, network: BaseNetwork) -> None:
        self._models = [(name_of(model), model) for model in network.models]
        self._current: defaultdict[str, list[float]] | None = None
        self.steps: list[Mapping[str, Sequence[float]]] = []

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time the modules of a step, in which each may be called several times."""
        self._current = defaultdict(list)
        self.steps.append(self._current)
        yield
        self._current = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Add hooks to the modules in a block."""
        from fastnet.backend.torch.wrappers import unwrap

        titles: dict[Any, str] = {}
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
    """Yield the direct children of a module with titles; in place of containers, theirs."""
    torch = import_module("torch")
    for child_name, child in module.named_children():
        title = f"{name}.{child_name}"
        if isinstance(child, torch.jit.ScriptModule):
            continue  # It takes no hooks.
        if type(child).forward is torch.nn.Module.forward:  # A container, which is not called.
            yield from _called_children(child, title)
        else:
            yield title, child
