"""Dice loss."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from fastnet import backend
from fastnet.backend.dice import score
from fastnet.backend.dispatch import implementation
from fastnet.op.tensorop.loss.loss import LossOp
from fastnet.types import State, Tensor

if TYPE_CHECKING:
    import torch


class DiceLoss(LossOp):
    """Measures how little predicted and true masks overlap: -1 for masks that are alike.

    Args:
        inputs: Two keys: predictions, shape (batch, channels, height, width) in torch and (batch,
            height, width, channels) in TensorFlow, and truth, of the same shape.
        outputs: The key to write the loss under: a scalar if samples and channels are averaged.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.
        soft_dice: Whether to divide by squares.
        average_loss: Whether to write the mean, rather than a loss for each sample.
        channel_average: Whether to average over channels.
        channel_weights: Weights by channel index; a channel without one weighs 1.
        epsilon: What keeps a division by nothing at bay.

    Raises:
        AssertionError: If `channel_weights` is no dict of int to float.
        ValueError: If there are not two inputs and one output.
    """

    def __init__(
        self,
        inputs: tuple[str, str] | list[str],
        outputs: str,
        mode: str | Iterable[str] | None = "!infer",
        ds_id: str | Iterable[str] | None = None,
        soft_dice: bool = False,
        average_loss: bool = True,
        channel_average: bool = True,
        channel_weights: dict[int, float] | None = None,
        epsilon: float = 1e-6,
    ) -> None:
        super().__init__(
            inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id, average_loss=average_loss
        )
        self.require_pair()
        self.soft_dice = soft_dice
        self.channel_average = channel_average
        self.channel_weights = channel_weights
        self.epsilon = epsilon
        self._row = None if not channel_weights else _row_of(channel_weights)
        self._weights: Any = None
        self._functions: Any = None

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Pick the framework's functions, and make a tensor of the weights.

        Args:
            framework: "torch" or "tf".
            device: The device that ops run on (torch only).
        """
        self._functions = import_module(f"fastnet.backend.{framework}")
        if self._row is not None:
            weights = backend.to_tensor(self._row, framework)
            self._weights = weights if device is None else weights.to(device)

    def forward(self, data: list[Tensor], state: State) -> Tensor:
        """Compute the loss.

        Args:
            data: Predictions and truth.
            state: The step's context, not used.

        Returns:
            The loss.
        """
        y_pred, y_true = data
        functions = self._functions or implementation(y_pred)
        weights = self._weights
        if weights is None and self._row is not None:
            weights = functions.from_numpy(self._row, y_pred)
        if weights is not None:
            unnamed = y_pred.shape[functions.CHANNEL_AXIS] - weights.shape[1]
            if unnamed > 0:
                one = functions.ones_like(weights[:, :1], None)
                weights = functions.concat([weights, *[one] * unnamed], 1)
        return -score(
            functions,
            y_pred,
            y_true,
            self.soft_dice,
            self.average_loss,
            self.channel_average,
            weights,
            self.epsilon,
        )


def _row_of(channel_weights: object) -> np.ndarray[Any, Any]:
    if not isinstance(channel_weights, dict):
        raise AssertionError(
            f"DiceLoss's channel_weights is a dict, not {type(channel_weights).__name__}."
        )
    for index, weight in channel_weights.items():
        if not isinstance(index, int):
            raise AssertionError(
                f"The keys of DiceLoss's channel_weights are channel indices of type int, but "
                f"{index!r} is of type {type(index).__name__}."
            )
        if index < 0:
            raise AssertionError(
                f"The keys of DiceLoss's channel_weights are channel indices, counted from 0, but "
                f"one is {index}."
            )
        if not isinstance(weight, float):
            raise AssertionError(
                f"The values of DiceLoss's channel_weights are of type float, but that of channel "
                f"{index} is {weight!r}, of type {type(weight).__name__}."
            )
    row = np.ones((1, max(channel_weights) + 1), dtype="float32")
    for index, weight in channel_weights.items():
        row[0, index] = weight
    return row
