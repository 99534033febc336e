"""How many intermediate tensors are alive at once: what a step keeps that nobody reads again."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bench.workloads.torch_workload import TorchWorkload
from bench.workloads.workload import Goal

if TYPE_CHECKING:
    import torch


class Census:
    """Makes new tensors and counts, at each birth, how many of its tensors are alive."""

    def __init__(self) -> None:
        self._born: list[weakref.ref[torch.Tensor]] = []
        self.most = 0

    def grow(self, data: torch.Tensor) -> torch.Tensor:
        """Return a new tensor, counted."""
        new = data + 1
        self._born.append(weakref.ref(new))
        self.most = max(self.most, sum(reference() is not None for reference in self._born))
        return new


@dataclass(frozen=True)
class LiveTensors(TorchWorkload):
    """A chain of ops that each make a new tensor, in infer mode, the last key wanted.

    A step returns the most tensors of the chain that were alive at once; the batch's own tensor is
    not counted. Two is the least there can be: what an op reads and what it makes.

    Attributes:
        length: How many ops.
    """

    length: int = 40

    counts: ClassVar[bool] = True

    @property
    def goals(self) -> dict[str, Goal]:
        """At most two tensors at once."""
        return {"bare": Goal(2, 40)}

    @property
    def keys(self) -> list[str]:
        """The keys along the chain: the first is the batch's, the last is wanted."""
        return [f"k{index}" for index in range(self.length + 1)]

    def batch(self) -> dict[str, torch.Tensor]:
        """Return a batch."""
        import torch

        return {"k0": torch.zeros(4)}

    def check(self, expected: Any, result: Any, extra_keys: bool) -> None:
        """See that the chain ran: at least as many tensors as a step cannot do without."""
        assert result >= 2, f"{result} tensors alive at once: the chain did not run"


WORKLOADS = (LiveTensors("live_40", "Most live tensors, chain of 40"),)
