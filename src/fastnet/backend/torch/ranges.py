"""Named ranges around ops, for `torch.profiler` and NVTX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.profiler import record_function

from fastnet.backend.ranges import OpRanges
from fastnet.backend.torch._internals import profiler_is_on

__all__ = ["NvtxRanges", "op_ranges", "profiler_is_on"]

# The module is untyped.
_nvtx: Any = torch.cuda.nvtx


def op_ranges(names: Callable[[], Sequence[str]]) -> OpRanges:
    """Return what opens a range around each op for `torch.profiler`, or NVTX in `emit_nvtx`."""
    return OpRanges(names, record_function, profiler_is_on)


class NvtxRanges:
    """Opens an NVTX range around each op."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def before(self, place: int) -> None:
        """Begin the range of an op, by its index."""
        _nvtx.range_push(self._names[place])

    def after(self, place: int) -> None:
        """End the range."""
        _nvtx.range_pop()
