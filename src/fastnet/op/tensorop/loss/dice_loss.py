"""Dice loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastnet.backend.losses import dice_score
from fastnet.errors import shorten
from fastnet.op.checks import is_number, require_weights
from fastnet.op.tensorop.loss.loss import PairLoss
from fastnet.types import Names, State, Tensor

if TYPE_CHECKING:
    import torch


class DiceLoss(PairLoss):
    """Dice loss: the negative Dice score, from -1 for equal masks to 0 for masks without overlap.

    ``-2 * sum(p * t) / (sum(p) + sum(t) + epsilon)`` per sample and channel. See `TensorOp` for
    `mode` and `ds_id`.

    Args:
        inputs: Two keys: predictions, shape (batch, channels, height, width) in torch and (batch,
            height, width, channels) in TensorFlow, and targets of the same shape.
        outputs: Key of the loss: a scalar if samples and channels are averaged, otherwise without
            the averaged axes of (batch, channels).
        soft_dice: Whether to square predictions and targets in the denominator.
        average_loss: Whether to average over the batch.
        channel_average: Whether to average over the channels.
        channel_weights: Weights by channel index; 1 for other channels.
        epsilon: Added to the denominator, so that empty masks do not divide by zero.

    Raises:
        AssertionError: If `channel_weights` is not a dict of int to a number.
        ValueError: If `epsilon` is not a number, or in a step, if a channel of `channel_weights`
            does not exist.

    >>> import torch
    >>> mask = torch.ones(1, 1, 2, 2)
    >>> DiceLoss(("y_pred", "y"), "loss").forward([mask / 2, mask], {})
    tensor(-0.6667)
    """

    resolved_from = ("soft_dice", "average_loss", "channel_average", "channel_weights", "epsilon")

    def __init__(
        self,
        inputs: tuple[str, str] | list[str],
        outputs: str,
        mode: Names = "!infer",
        ds_id: Names = None,
        soft_dice: bool = False,
        average_loss: bool = True,
        channel_average: bool = True,
        channel_weights: dict[int, float] | None = None,
        epsilon: float = 1e-6,
    ) -> None:
        super().__init__(
            inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id, average_loss=average_loss
        )
        if not is_number(epsilon):
            raise ValueError(f"DiceLoss's epsilon must be a number, not {shorten(epsilon)}.")
        if channel_weights:
            require_weights(self, "channel_weights", "channel", channel_weights)
            if min(channel_weights) < 0:
                raise AssertionError(
                    f"The keys of DiceLoss's channel_weights must be channel indices of at least "
                    f"0, but one is {min(channel_weights)}."
                )
        self.soft_dice = soft_dice
        self.channel_average = channel_average
        self.channel_weights = channel_weights
        self.epsilon = epsilon
        # The weights as tensors, by the number of channels.
        self._weights: dict[int, Any] = {}

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Prepare the op; see `TensorOp.build`."""
        super().build(framework, device)
        # Tensors that were made before may be on another device.
        self._weights = {}

    def forward(self, data: list[Tensor], state: State) -> Tensor:
        """Return the loss."""
        y_pred, y_true = data
        return -dice_score(
            y_pred,
            y_true,
            soft_dice=self.soft_dice,
            sample_average=self.average_loss,
            channel_average=self.channel_average,
            channel_weights=self._weights_for(y_pred) if self.channel_weights else None,
            epsilon=self.epsilon,
        )

    def _weights_for(self, y_pred: Tensor) -> Tensor:
        """Return the weights of the channels, shape (1, channels)."""
        backend = self._backend_of(y_pred, "constant")
        count = y_pred.shape[backend.CHANNEL_AXIS]
        weights = self._weights.get(count)
        if weights is None:
            assert self.channel_weights
            if max(self.channel_weights) >= count:
                raise ValueError(
                    f"DiceLoss's channel_weights has the channel {max(self.channel_weights)}, but "
                    f"the predictions, of shape {tuple(y_pred.shape)}, have the channels 0 to "
                    f"{count - 1}."
                )
            row = np.ones((1, count), dtype="float32")
            row[0, list(self.channel_weights)] = list(self.channel_weights.values())
            weights = backend.constant(row, y_pred)
            if self._framework is not None:
                self._weights[count] = weights
        return weights
