"""Cut a batch along an axis, run an op on every slice, and put the slices together again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from bench.workloads.workload import Workload, check_mapping

AXIS = 1


@dataclass(frozen=True)
class Slicing(Workload):
    """A step over a (8, `slices`, 32) batch, sliced along axis 1 through one identity op.

    Attributes:
        slices: How many slices the batch is cut into.
    """

    slices: int = 16

    def batch(self) -> dict[str, torch.Tensor]:
        """Return a batch."""
        return {"x": torch.arange(8.0 * self.slices * 32).reshape(8, self.slices, 32)}

    def check(self, expected: Any, result: Any, extra_keys: bool) -> None:
        """Compare keys and values."""
        check_mapping(expected, result, extra_keys)


WORKLOADS = (Slicing("slicing_16", "Slice a batch in 16 and merge"),)
