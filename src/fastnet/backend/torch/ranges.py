"""Ranges in the profiles of PyTorch and of GPUs: one around each op, with its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.profiler import record_function

from fastnet.backend.ranges import OpRanges
from fastnet.backend.torch._internals import profiler_is_on

__all__ = ["NvtxRanges", "op_ranges", "profiler_is_on"]

# without types
_nvtx: Any = torch.cuda.nvtx


def op_ranges(names: Callable[[], Sequence[str]]) -> OpRanges:
    """Return the object that names ops in `torch.profiler`, and to NVTX under its `emit_nvtx`.

    Args:
        names: Gives the name of each op, when there is a range to name.
    """
    return OpRanges(names, record_function, profiler_is_on)


class NvtxRanges:
    """Names ops to NVTX, which the profilers of GPUs read.

    Args:
        names: The name of each op.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def before(self, place: int) -> None:
        """Begin the range of an op.

        Args:
            place: The op's place.
        """
        _nvtx.range_push(self._names[place])

    def after(self, place: int) -> None:
        """End it.

        Args:
            place: The op's place.
        """
        _nvtx.range_pop()
