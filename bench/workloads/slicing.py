"""Cut a batch along an axis, run an op on every slice, and put the slices together again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.workloads.torch_workload import TorchWorkload

if TYPE_CHECKING:
    import torch

AXIS = 1


@dataclass(frozen=True)
class Slicing(TorchWorkload):
    """A step over a (8, `slices`, 32) batch, sliced along axis 1 through one identity op.

    Attributes:
        slices: How many slices the batch is cut into.
    """

    slices: int = 16

    def batch(self) -> dict[str, torch.Tensor]:
        """Return a batch."""
        import torch

        return {"x": torch.arange(8.0 * self.slices * 32).reshape(8, self.slices, 32)}


WORKLOADS = (Slicing("slicing_16", "Slice a batch in 16 and merge"),)
