"""Named ranges around ops and times of collectives, by `torch.profiler`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.autograd.profiler import record_function

from fastnet.backend.ranges import OpRanges
from fastnet.backend.torch._internals import profiler_is_on

# How torch's profiler names collectives.
_COLLECTIVES = ("gloo:", "nccl:", "xccl:")


def op_ranges(names: Callable[[], Sequence[str]]) -> OpRanges:
    """Return what opens a range around each op for `torch.profiler`, or NVTX in `emit_nvtx`."""
    return OpRanges(names, record_function, profiler_is_on)


@contextmanager
def communication() -> Iterator[dict[str, list[float]]]:
    """Time collectives with torch's profiler; the dict is filled when the context is left."""
    found: dict[str, list[float]] = {}
    if profiler_is_on():
        yield found
        return
    devices = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        devices.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=devices) as profile:
        yield found
    for event in profile.events():
        if event.name.startswith(_COLLECTIVES):
            found.setdefault(event.name, []).append(event.time_range.elapsed_us() / 1e6)
