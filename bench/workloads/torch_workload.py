"""What the workloads in PyTorch share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.workloads.workload import Workload, check_keys

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class TorchWorkload(Workload):
    """A workload whose results are mappings of tensors, unless it says otherwise."""

    def check(self, expected: Any, result: Any, extra_keys: bool) -> None:
        """Compare keys and values."""
        check_mapping(expected, result, extra_keys)

    def check_weights(self, expected: nn.Module, result: nn.Module) -> None:
        """Compare the weights of two models."""
        import torch

        for (name, weight), other in zip(
            expected.named_parameters(), result.parameters(), strict=True
        ):
            said = partial("weights of {}: {}".format, name)
            torch.testing.assert_close(other, weight, msg=said)


def check_mapping(expected: Any, result: Any, extra_keys: bool) -> None:
    """Raise `AssertionError` unless both mappings have the same keys and close tensors.

    Args:
        expected: What the baseline returned.
        result: What the peer returned.
        extra_keys: Whether `result` may have keys that `expected` lacks.
    """
    import torch

    for key in check_keys(expected, result, extra_keys):
        torch.testing.assert_close(result[key], expected[key], msg=partial("{}: {}".format, key))
        assert not result[key].requires_grad, f"{key} still belongs to an autograd graph"
