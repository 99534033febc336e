"""Hinge loss."""

from __future__ import annotations

from fastnet.op.tensorop.loss.loss import PairLoss
from fastnet.types import State, Tensor


class Hinge(PairLoss):
    """Hinge loss: the mean of ``max(1 - y_true * y_pred, 0)`` over the last axis.

    See `TensorOp` for `mode` and `ds_id`.

    Args:
        inputs: Two keys: predictions and targets of the same shape (batch, ...). Targets are -1 or
            1.
        outputs: Key of the loss: a scalar, or the inputs' shape without the last axis.
        average_loss: Whether to return the mean over the batch instead of one loss per sample.

    >>> import torch
    >>> op = Hinge(("y_pred", "y"), "loss")
    >>> op.forward([torch.tensor([[0.5, -2.0]]), torch.tensor([[1.0, -1.0]])], {})
    tensor(0.2500)
    """

    def forward(self, data: list[Tensor], state: State) -> Tensor:
        """Return the loss."""
        y_pred, y_true = data
        loss = self.backend.hinge(y_true, y_pred)
        return self.backend.mean_of_losses(loss) if self.average_loss else loss
