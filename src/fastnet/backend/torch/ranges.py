"""Named ranges around ops, for `torch.profiler` and `emit_nvtx`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.autograd.profiler import record_function

from fastnet.backend.ranges import OpRanges
from fastnet.backend.torch._internals import profiler_is_on

__all__ = ["op_ranges", "profiler_is_on"]


def op_ranges(names: Callable[[], Sequence[str]]) -> OpRanges:
    """Return what opens a range around each op for `torch.profiler`, or NVTX in `emit_nvtx`."""
    return OpRanges(names, record_function, profiler_is_on)
