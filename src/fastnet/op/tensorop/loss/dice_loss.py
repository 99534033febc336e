"""Dice loss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from fastnet.backend.dice import score
from fastnet.errors import shorten
from fastnet.op.checks import is_number, require_weights
from fastnet.op.tensorop.loss.loss import LossOp
from fastnet.op.tensorop.of_framework import WithFramework
from fastnet.types import State, Tensor

if TYPE_CHECKING:
    import torch


def _weights_for(functions: Any, y_pred: Tensor, op: DiceLoss) -> Any:
    """Find a weight for each channel of the predictions."""
    count = y_pred.shape[functions.CHANNEL_AXIS]
    known = op._rows.get(count)
    if known is not None:
        return known
    row: Any = op._row
    unnamed = max(count - row.shape[1], 0)
    row = np.pad(row, ((0, 0), (0, unnamed)), constant_values=1.0)
    weights = functions.constant(row, y_pred)
    if op._framework is not None:  # else the next step may be another framework's
        op._rows[count] = weights
    return weights


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
        ValueError: If `epsilon` is no number; in a network also if there are not two inputs and one
            output.
    """

    _score = WithFramework(score)
    _weigh = WithFramework(_weights_for)

    resolved_from = ("soft_dice", "average_loss", "channel_average", "channel_weights", "epsilon")

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
        # a bare one even where a list of one key was given
        self.out_list = False
        if not is_number(epsilon):
            raise ValueError(f"DiceLoss's epsilon is a number, not {shorten(epsilon)}.")
        self.soft_dice = soft_dice
        self.channel_average = channel_average
        self.channel_weights = channel_weights
        self.epsilon = epsilon
        self._row = None if not channel_weights else _row_of(self, channel_weights)
        self._rows: dict[int, Any] = {}

    def check_keys(self) -> None:
        """Refuse anything but two inputs and one output, when a network is made of the op.

        Raises:
            ValueError: If there are more or fewer.
        """
        self.require_pair()

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Make the weights anew, where the device is another one.

        Args:
            framework: "torch" or "tf".
            device: The device that ops run on (torch only).
        """
        super().build(framework, device)
        self._rows = {}

    def forward(self, data: list[Tensor], state: State) -> Tensor:
        """Compute the loss.

        Args:
            data: Predictions and truth.
            state: The step's context, not used.

        Returns:
            The loss.
        """
        y_pred, y_true = data
        weights = None if self._row is None else self._weigh(y_pred, self)
        return -self._score(
            y_pred,
            y_true,
            self.soft_dice,
            self.average_loss,
            self.channel_average,
            weights,
            self.epsilon,
        )


def _row_of(op: DiceLoss, channel_weights: Any) -> np.ndarray[Any, Any]:
    require_weights(op, "channel_weights", "channel", channel_weights)
    if min(channel_weights) < 0:
        raise AssertionError(
            f"The keys of DiceLoss's channel_weights are channel indices, counted from 0, but one "
            f"is {min(channel_weights)}."
        )
    row = np.ones((1, max(channel_weights) + 1), dtype="float32")
    for index, weight in channel_weights.items():
        row[0, index] = weight
    return row
