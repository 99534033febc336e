"""The model and the hand-written training step of digits.py in PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Batch = dict[str, torch.Tensor]
Step = Callable[[Batch], Batch]

CHANNEL_AXIS = 1  # images are (sample, channel, row, column)


def use_one_thread() -> None:
    """Compute on one thread; call this before anything is computed."""
    torch.set_num_threads(1)


def set_seed(seed: int) -> None:
    """Seed the generator that draws the initial weights."""
    torch.manual_seed(seed)


def make_model() -> nn.Module:
    """Make the convolutional network: images of shape (batch, 1, 8, 8) to (batch, 10) logits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def make_training_step(model: nn.Module) -> Step:
    """Return a hand-written training step, whose results hold no graph."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()  # A hand-written loop does this once.

    def step(batch: Batch) -> Batch:
        logits = model(batch["image"])
        loss = nn.functional.cross_entropy(logits, batch["label"])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return {**batch, "logits": logits.detach(), "loss": loss.detach()}

    return step
