"""Batches of arrays and of another framework's tensors, as a loader that knows no framework gives.

A person who writes the loop by hand converts them in front of the model; so does a network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bench.workloads import mlp, tf_mlp
from bench.workloads.supervised import Supervised
from bench.workloads.tf_supervised import TFSupervised
from bench.workloads.workload import Goal


@dataclass(frozen=True)
class ForeignBatch(Supervised):
    """A step in PyTorch on a batch of numpy arrays.

    FastEstimator has no number: in PyTorch it hands arrays to the model as they are.
    """

    only: ClassVar[frozenset[str] | None] = frozenset({"bare", "fastnet"})

    def batch(self) -> dict[str, Any]:
        """Return the batch of the step, as arrays."""
        return {key: value.numpy() for key, value in super().batch().items()}

    def check(self, expected: Any, result: Any, extra_keys: bool) -> None:
        """Compare keys, and the values that the step added; the batch's own are still arrays."""
        assert result.keys() == expected.keys(), f"{set(result)} is not {set(expected)}"
        added = {key: expected[key] for key in self.wanted}
        super().check(added, result, extra_keys=True)


@dataclass(frozen=True)
class TFForeignBatch(TFSupervised):
    """A step in TensorFlow on a batch of torch tensors.

    That is what FastEstimator's loaders give, where its Estimator is kept and a network replaced.
    """

    references: ClassVar[tuple[str, ...]] = ("tf_concrete", "fastestimator")
    only: ClassVar[frozenset[str] | None] = frozenset({"tf_concrete", "fastnet", "fastestimator"})

    def batch(self, size: int | None = None) -> dict[str, Any]:
        """Return the batch of the step, as torch tensors."""
        import torch

        made = super().batch(size)
        return {key: torch.from_numpy(value.numpy().copy()) for key, value in made.items()}


WORKLOADS = (
    ForeignBatch(
        "mlp_foreign", "MLP train step, numpy batch", True, mlp.layers, (8, 16), 4, Goal(1.05)
    ),
)

TF_WORKLOADS = (
    TFForeignBatch(
        "tf_mlp_foreign", "MLP train step, torch batch", True, tf_mlp.layers, (8, 16), 4, Goal(1.05)
    ),
)
