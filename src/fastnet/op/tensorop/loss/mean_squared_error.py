"""Mean squared error."""

from __future__ import annotations

from fastnet.op.tensorop.loss.loss import PairLoss
from fastnet.types import State, Tensor


class MeanSquaredError(PairLoss):
    """Mean squared error: the mean of ``(y_pred - y_true) ** 2``.

    See `TensorOp` for `mode` and `ds_id`.

    Args:
        inputs: Two keys: predictions and targets of the same shape (batch, ...).
        outputs: Key of the loss: a scalar, or the inputs' shape without the last axis.
        average_loss: Whether to return the mean over the batch instead of one loss per sample.

    >>> import torch
    >>> op = MeanSquaredError(("y_pred", "y"), "loss")
    >>> op.forward([torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 4.0]])], {})
    tensor(2.)
    """

    def forward(self, data: list[Tensor], state: State) -> Tensor:
        """Return the loss."""
        y_pred, y_true = data
        return self.backend.mean_squared_error(y_true, y_pred, self.average_loss)
