"""Random numbers in a trace: which graphs draw them, and what ops must not do with generators."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fastnet.network.torch.compiled.uncapturable import Uncapturable


class _RandomState:
    """Stands for torch's default generator during a trace, and notes uses in this thread."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._thread = threading.get_ident()
        self._before = generator.get_state()
        self._is_used = self._is_seeded = False

    def __getattr__(self, name: str) -> Any:
        if threading.get_ident() == self._thread:
            self._is_used = True
        return getattr(self._generator, name)

    def put_back(self) -> None:
        """Restore the generator's state, unless only other threads have changed it."""
        self._is_seeded = not torch.equal(self._before, self._generator.get_state())
        if self._is_used and self._is_seeded:
            self._generator.set_state(self._before)

    def check(self, is_random: bool) -> None:
        """Refuse a step that seeds, or restores the state around random numbers."""
        if self._is_used and (self._is_seeded or is_random):
            raise Uncapturable("the ops seed, fork or restore torch's random state")


@contextmanager
def watched_process() -> Iterator[_RandomState]:
    """Watch the uses of torch's generator and of `torch.compile` in this thread."""
    # Functions of `torch.random` look the generator up in their module.
    patched: Any = torch
    thread, compile = threading.get_ident(), patched.compile
    generator = patched.random.default_generator
    random_state = _RandomState(generator)

    def refuse(*args: Any, **settings: Any) -> Any:
        if threading.get_ident() == thread:
            raise Uncapturable("an op calls torch.compile, as torch.cond does")
        return compile(*args, **settings)

    patched.compile, patched.random.default_generator = refuse, random_state
    try:
        yield random_state
    finally:
        patched.compile, patched.random.default_generator = compile, generator
        random_state.put_back()


def is_random(node: torch.fx.Node) -> bool:
    """Return whether a node draws random numbers; refuse generators other than the default."""
    if any(isinstance(one, torch.Generator) for one in (*node.args, *node.kwargs.values())):
        raise Uncapturable("an op draws random numbers from a generator of its own")
    if str(node.target).startswith("aten._scaled_dot_product_flash_attention_for_cpu"):
        return any(node.args[3:4])  # The probability of dropout.
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
