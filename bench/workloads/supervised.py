"""A classifier's step: predict, or train with cross entropy on logits and plain SGD."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.workloads.torch_workload import TorchWorkload
from bench.workloads.workload import Goal

if TYPE_CHECKING:
    import torch
    from torch import nn

LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Supervised(TorchWorkload):
    """A train step or an infer step of one model on one batch.

    A train step returns the batch with `pred` (logits) and `loss` on top, both detached; an infer
    step returns it with `pred`.

    Attributes:
        training: Whether the step trains.
        layers: Makes the model.
        shape: The shape of the input, batch first.
        classes: How many classes there are.
        goal: The limit on the ratio to the hand-written loop, where one is set.
    """

    training: bool
    layers: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    goal: Goal | None = None

    @property
    def goals(self) -> dict[str, Goal]:
        """The goal beside the hand-written loop."""
        return {} if self.goal is None else {"bare": self.goal}

    @property
    def steps_to_check(self) -> int:
        """Three steps of training, to see that weights move alike; one of inference."""
        return 3 if self.training else 1

    @property
    def mode(self) -> str:
        """The mode in which a network runs this step."""
        return "train" if self.training else "infer"

    @property
    def wanted(self) -> set[str]:
        """The keys that a step adds to its batch."""
        return {"pred", "loss"} if self.training else {"pred"}

    def model(self) -> nn.Module:
        """Return the model, with the same weights every time, in the mode the step needs."""
        import torch

        torch.manual_seed(0)
        return self.layers().train(self.training)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer of `model`."""
        import torch

        return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def batch(self) -> dict[str, torch.Tensor]:
        """Return a batch, the same every time."""
        import torch

        generator = torch.Generator().manual_seed(1)
        return {
            "x": torch.randn(self.shape, generator=generator),
            "y": torch.randint(0, self.classes, self.shape[:1], generator=generator),
        }
