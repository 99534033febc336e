"""Ranges in the profiles of PyTorch and of GPUs: one around each op, with its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch.autograd.profiler import record_function

__all__ = ["NvtxRanges", "OpRanges", "profiler_is_on"]

# without types
_nvtx: Any = torch.cuda.nvtx


def profiler_is_on() -> bool:
    """Tell whether a profiler is on in this thread."""
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]


class OpRanges:
    """Names ops in `torch.profiler`, and to NVTX under `torch.autograd.profiler.emit_nvtx`.

    Args:
        names: Gives the name of each op. It is not called before there is a range to name: most
            openings of a network have none.
    """

    def __init__(self, names: Callable[[], Sequence[str]]) -> None:
        self._give_names = names
        self._open: list[Any] = []

    @cached_property
    def _names(self) -> Sequence[str]:
        return self._give_names()

    def active(self) -> bool:
        """Tell whether a profiler is on in this thread."""
        return profiler_is_on()

    def before(self, place: int) -> None:
        """Begin the range of an op.

        Args:
            place: The op's place.
        """
        opened: Any = record_function(self._names[place])
        opened.__enter__()
        self._open.append(opened)

    def after(self, place: int) -> None:
        """End it.

        Args:
            place: The op's place.
        """
        self._open.pop().__exit__(None, None, None)


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
