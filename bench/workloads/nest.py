"""Detach, or move to a device, the 12 tensors of a nest of dicts, lists and tuples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bench.workloads.torch_workload import TorchWorkload
from bench.workloads.workload import Goal

if TYPE_CHECKING:
    import torch


def tensor() -> torch.Tensor:
    """Return a small tensor that belongs to an autograd graph, as a prediction does."""
    import torch

    return torch.ones(4, requires_grad=True) * 1


@dataclass(frozen=True)
class Nest(TorchWorkload):
    """Apply `detach()` or `to(device)` to each of 12 tensors, and keep the containers' types.

    Attributes:
        action: What to do with each tensor.
        goal: The limit on the ratio, where one is set.
    """

    action: Literal["detach", "move"]
    goal: Goal | None = None

    references: ClassVar[tuple[str, ...]] = ("bare", "bare_strict")

    @property
    def goals(self) -> dict[str, Goal]:
        """The same goal beside both loops."""
        return {} if self.goal is None else {"bare": self.goal, "bare_strict": self.goal}

    def nest(self) -> dict[str, Any]:
        """Return the nest: 12 tensors, four levels of containers at its deepest."""
        return {
            "image": tensor(),
            "label": tensor(),
            "boxes": [tensor(), tensor(), tensor()],
            "pyramid": (tensor(), tensor(), tensor()),
            "meta": {
                "scale": tensor(),
                "shift": tensor(),
                "masks": {"inner": [tensor()], "outer": (tensor(),)},
            },
        }

    def check(self, expected: Any, result: Any, extra_keys: bool) -> None:
        """Compare containers and tensors, all the way down."""
        assert type(result) is type(expected), f"{type(expected)} became {type(result)}"
        if isinstance(expected, dict):
            assert result.keys() == expected.keys()
            for key in expected:
                self.check(expected[key], result[key], extra_keys)
        elif isinstance(expected, (list, tuple)):
            assert len(result) == len(expected)
            for mine, other in zip(expected, result, strict=True):
                self.check(mine, other, extra_keys)
        else:
            import torch

            torch.testing.assert_close(result.detach(), expected.detach())
            assert result.requires_grad == expected.requires_grad


WORKLOADS = (
    Nest("nest_detach", "Detach a nest of 12 tensors", "detach", Goal(1.15, 2.09)),
    Nest("nest_move", "Move a nest of 12 tensors", "move", Goal(0.5, 1.61)),
)
