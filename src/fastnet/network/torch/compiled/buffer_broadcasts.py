"""Whether a step broadcasts the buffers of models in DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from fastnet.backend.torch.wrappers import wrapper_of

FLAG = "require_forward_param_sync"
"""The attribute of a wrapper that tells whether its next forward pass broadcasts its buffers."""


class BufferBroadcasts:
    """The flags of models by which their next forward passes broadcast buffers.

    An update sets them, and a forward pass clears them. A program is made for their values before a
    step, and leaves those after it.

    Args:
        models: The models of the step, some of which may be in DistributedDataParallel.
    """

    def __init__(self, models: Iterable[torch.nn.Module]) -> None:
        wrappers: list[Any] = list(map(wrapper_of, models))
        self._wrappers = [
            wrapper
            for wrapper in wrappers
            if isinstance(wrapper, DistributedDataParallel)
            and wrapper.broadcast_buffers
            and any(True for _ in wrapper.buffers())
        ]
        self._before = self._after = self._flags()

    @property
    def are_any(self) -> bool:
        """Whether there are models that may broadcast buffers."""
        return bool(self._wrappers)

    def _flags(self) -> list[bool]:
        return [getattr(wrapper, FLAG) for wrapper in self._wrappers]

    def is_current(self) -> bool:
        """Return whether the flags are those of before the step."""
        return self._flags() == self._before

    def note_end(self) -> None:
        """Note the flags at the end of a trace."""
        self._after = self._flags()

    def advance(self) -> None:
        """Set the flags as a step does."""
        for wrapper, flag in zip(self._wrappers, self._after, strict=True):
            setattr(wrapper, FLAG, flag)
