"""Whether a step broadcasts the buffers of models in DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from fastnet.backend.torch.wrappers import without_compile
from fastnet.types import RunStep

FLAG = "require_forward_param_sync"
"""The attribute of a wrapper that tells whether its next forward pass broadcasts its buffers."""


class BufferBroadcasts:
    """The flags that tell which models broadcast their buffers in their next forward pass.

    An update sets them, and a forward pass clears them. A program is valid for their values before
    the traced step, and sets those after it.

    Args:
        models: The models of the step, some of which may be in DistributedDataParallel.
    """

    def __init__(self, models: Iterable[torch.nn.Module]) -> None:
        wrappers: list[Any] = list(map(without_compile, models))
        self._wrappers = [
            wrapper
            for wrapper in wrappers
            if isinstance(wrapper, DistributedDataParallel)
            and wrapper.broadcast_buffers
            and any(True for _ in wrapper.buffers())
        ]
        self._before = self._after = self.flags()

    @property
    def has_wrappers(self) -> bool:
        """Whether there are models that may broadcast buffers."""
        return bool(self._wrappers)

    def flags(self) -> list[bool]:
        """Return the flag of each model, as it is now."""
        return [getattr(wrapper, FLAG) for wrapper in self._wrappers]

    def _set(self, flags: Iterable[bool]) -> None:
        for wrapper, flag in zip(self._wrappers, flags, strict=True):
            setattr(wrapper, FLAG, flag)

    @contextmanager
    def with_flags(self, flags: Iterable[bool]) -> Iterator[None]:
        """Replace the flags temporarily."""
        original = self.flags()
        try:
            self._set(flags)
            yield
        finally:
            self._set(original)

    def restored_on_error(self, run: RunStep) -> RunStep:
        """Return a function that runs a step, and leaves the flags as they were if it fails.

        A program that fails does not change them, either. Thus, after a step that fails on all
        ranks, these have the same flags, whether they ran it eagerly or compiled.
        """

        def run_step(batch: Mapping[str, Any]) -> dict[str, Any]:
            flags = self.flags()
            try:
                return run(batch)
            except BaseException:
                self._set(flags)
                raise

        return run_step if self._wrappers else run

    def note_end(self) -> None:
        """Note the flags at the end of a trace, before which this object was made."""
        self._after = self.flags()

    def is_current(self) -> bool:
        """Return whether the flags are those from before the trace."""
        return self.flags() == self._before

    def advance(self) -> None:
        """Set the flags as the traced step does."""
        self._set(self._after)
