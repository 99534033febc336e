"""A training step with four faults in it, and the same step without them.

The walk through it is docs/overhead.md. Handwritten digits come as scans of 128 x 128 pixels; a
step shrinks them, shifts each a little at random, and trains a small network on them.

    fastnet explain examples/overhead.py:slow --outputs loss
    fastnet profile examples/overhead.py:slow --batch examples/overhead.py:batches
    fastnet profile examples/overhead.py:fast --batch examples/overhead.py:batches --outputs loss
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import fastnet
from fastnet.op.tensorop import TensorOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp

BATCH_SIZE = 32
ENLARGED = 16  # 8 x 8 pixels become 128 x 128
REACH = 1  # pixels that a digit is shifted by at most


def slow() -> fastnet.BaseNetwork:
    """Make the network as it grew."""
    model = make_model()
    return fastnet.Network(
        [
            # fault 1: every pixel of the large scans becomes a float before most are thrown away
            ToFloat(inputs="scan", outputs="scan"),
            Shrink(inputs="scan", outputs="image"),
            # fault 2: a loop in Python over what tensor calls do at once
            ShiftEach(inputs="image", outputs="image"),
            # fault 3: somebody looked at this once, and now nobody does
            Preview(inputs="image", outputs="preview"),
            ModelOp(model, inputs="image", outputs="scores"),
            CrossEntropy(inputs=("scores", "label"), outputs="loss", from_logits=True),
            UpdateOp(model, loss_name="loss"),
        ]
        # fault 4 is not here, but where it is opened: all outputs are asked for, and so kept
    )


def fast() -> fastnet.BaseNetwork:
    """Make the network that does the same without the faults."""
    model = make_model()
    return fastnet.Network(
        [
            ShrinkBytes(inputs="scan", outputs="image"),
            ShiftAll(inputs="image", outputs="image"),
            ModelOp(model, inputs="image", outputs="scores"),
            CrossEntropy(inputs=("scores", "label"), outputs="loss", from_logits=True),
            UpdateOp(model, loss_name="loss"),
        ]
    )


def batches() -> Iterator[dict[str, np.ndarray]]:
    """Return the batches of an epoch: scans of bytes, and what they show."""
    digits = load_digits()
    pixels = (digits.images * (255 / 16)).astype("uint8")
    for start in range(0, len(pixels) - BATCH_SIZE + 1, BATCH_SIZE):
        chosen = pixels[start : start + BATCH_SIZE, None]
        yield {
            "scan": chosen.repeat(ENLARGED, axis=2).repeat(ENLARGED, axis=3),
            "label": digits.target[start : start + BATCH_SIZE],
        }


def make_model() -> Any:
    """Build the model, always from the same weights."""
    torch.set_num_threads(1)  # so small a model gains nothing from more, and timings compare
    torch.manual_seed(0)
    return fastnet.build(
        lambda: nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * 4 * 4, 10),
        ),
        optimizer_fn="adam",
        model_name="digits",
    )


class ToFloat(TensorOp):
    """Turn bytes into numbers from 0 to 1."""

    def forward(self, data: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        return data.float() / 255


class Shrink(TensorOp):
    """Take the mean of each square of pixels."""

    def forward(self, data: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        return functional.avg_pool2d(data, ENLARGED)


class ShrinkBytes(TensorOp):
    """Take the mean of each square of bytes, and turn only these into numbers from 0 to 1."""

    def forward(self, data: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        rows = data.unflatten(2, (-1, ENLARGED)).sum(dim=3, dtype=torch.int16)
        squares = rows.unflatten(3, (-1, ENLARGED)).sum(dim=4)
        return squares / (ENLARGED * ENLARGED * 255)


class Preview(TensorOp):
    """Enlarge images for somebody to look at."""

    def forward(self, data: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        return functional.interpolate(data, scale_factor=ENLARGED)


class ShiftEach(TensorOp):
    """Shift each image by itself."""

    def forward(self, data: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        shifted = []
        for image in data:
            down, right = random.randint(-REACH, REACH), random.randint(-REACH, REACH)
            shifted.append(torch.roll(image, (down, right), dims=(1, 2)))
        return torch.stack(shifted)


class ShiftAll(TensorOp):
    """Shift all images at once, each by its own distance."""

    def forward(self, data: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        count, _, height, width = data.shape
        down = torch.randint(-REACH, REACH + 1, (count, 1))
        right = torch.randint(-REACH, REACH + 1, (count, 1))
        rows = (torch.arange(height) - down) % height
        columns = (torch.arange(width) - right) % width
        places = torch.arange(count)[:, None, None]
        return data[places, 0, rows[:, :, None], columns[:, None, :]].unsqueeze(1)
