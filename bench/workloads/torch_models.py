"""Steps of classifiers in PyTorch: inference, or training with cross entropy on logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bench.workloads.workload import Goal, ModelStep

if TYPE_CHECKING:
    import torch
    from torch import nn

LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Supervised(ModelStep):
    """A train step or an infer step of one model on one batch.

    A train step returns the batch with `pred` (logits) and `loss` added, both detached; an infer
    step returns it with `pred`.

    Attributes:
        layers: Makes the model.
        shape: The shape of the input, batch first.
        classes: The number of classes.
        adam: Whether the optimizer is Adam instead of SGD.
    """

    layers: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    adam: bool = False

    def model(self) -> nn.Module:
        """Return the model, always with the same weights, in the mode of the step."""
        import torch

        torch.manual_seed(0)
        return self.layers().train(self.training)

    def optimizer(
        self, parameters: Iterable[nn.Parameter], fused: bool = False
    ) -> torch.optim.Optimizer:
        """Return an optimizer of some parameters."""
        import torch

        kind: Any = torch.optim.Adam if self.adam else torch.optim.SGD
        optimizer: torch.optim.Optimizer = kind(
            parameters, lr=LEARNING_RATE, **({"fused": True} if fused else {})
        )
        return optimizer

    def batch(self) -> dict[str, Any]:
        """Return a batch, always the same."""
        import torch

        generator = torch.Generator().manual_seed(1)
        return {
            "x": torch.randn(self.shape, generator=generator),
            "y": torch.randint(0, self.classes, self.shape[:1], generator=generator),
        }


@dataclass(frozen=True)
class ForeignBatch(Supervised):
    """A step on a batch of numpy arrays, which the hand-written loop converts itself.

    FastEstimator takes no part: in PyTorch it passes arrays to the model unchanged.
    """

    only: ClassVar[frozenset[str] | None] = frozenset({"bare", "fastnet"})

    def batch(self) -> dict[str, Any]:
        """Return the batch as arrays."""
        return {key: value.numpy() for key, value in super().batch().items()}


def mlp() -> nn.Module:
    """Return a network whose step is mostly overhead: (8, 16) -> (8, 4)."""
    from torch import nn

    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def modules120() -> nn.Module:
    """Return 60 linear layers and 60 activations: (8, 16) -> (8, 16)."""
    from torch import nn

    return nn.Sequential(*(module for _ in range(60) for module in (nn.Linear(16, 16), nn.Tanh())))


def lenet() -> nn.Module:
    """Return a small convolutional network: (32, 1, 28, 28) -> (32, 10)."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 6, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


IMAGES = (32, 1, 28, 28)

WORKLOADS = (
    Supervised("mlp_train", "MLP train step", True, mlp, (8, 16), 4, goal=Goal(1.05, 2.48)),
    Supervised("mlp_infer", "MLP infer step", False, mlp, (8, 16), 4, goal=Goal(1.10, 1.90)),
    ForeignBatch(
        "mlp_foreign", "MLP train step, numpy batch", True, mlp, (8, 16), 4, goal=Goal(1.05)
    ),
    Supervised(
        "modules120_train",
        "120 modules train step",
        True,
        modules120,
        (8, 16),
        16,
        goal=Goal(1.03, 1.44),
    ),
    Supervised("modules120_infer", "120 modules infer step", False, modules120, (8, 16), 16),
    Supervised("lenet_train", "LeNet train step", True, lenet, IMAGES, 10),
    Supervised("lenet_infer", "LeNet infer step", False, lenet, IMAGES, 10),
)
