"""Mean absolute error, smooth L1 loss and Huber loss."""

from __future__ import annotations

from fastnet.errors import shorten
from fastnet.op.checks import is_number
from fastnet.op.tensorop.loss.loss import PairLoss
from fastnet.types import Names, State, Tensor

_TYPES = ("L1", "Smooth", "Huber")


class L1_Loss(PairLoss):
    """Mean absolute error, smooth L1 loss or Huber loss, as in `torch.nn`.

    With ``d = |y_pred - y_true|``, "Smooth" is ``d ** 2 / (2 * beta)`` for ``d < beta`` and
    otherwise ``d - beta / 2``; "Huber" is `beta` times that. See `TensorOp` for `mode` and `ds_id`.

    Args:
        inputs: Two keys: predictions and targets of the same shape (batch, ...).
        outputs: Key of the loss: a scalar, or the inputs' shape without the last axis.
        average_loss: Whether to return the mean over the batch instead of one loss per sample.
        loss_type: "L1", "Smooth" or "Huber".
        beta: Where the quadratic part ends, positive.

    Raises:
        ValueError: If `loss_type` is unknown, or `beta` is not positive.

    >>> import torch
    >>> op = L1_Loss(("y_pred", "y"), "loss", loss_type="Huber", beta=2.0)
    >>> op.forward([torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 0.0]])], {})
    tensor(2.2500)
    """

    resolved_from = ("average_loss", "loss_type", "beta")

    def __init__(
        self,
        inputs: tuple[str, str] | list[str],
        outputs: str,
        mode: Names = "!infer",
        ds_id: Names = None,
        average_loss: bool = True,
        loss_type: str = "L1",
        beta: float = 1.0,
    ) -> None:
        super().__init__(
            inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id, average_loss=average_loss
        )
        if loss_type not in _TYPES:
            raise ValueError(
                f"L1_Loss's loss_type must be one of {list(_TYPES)}, not {shorten(loss_type)}."
            )
        if not is_number(beta) or not beta > 0:
            raise ValueError(f"L1_Loss's beta must be positive, not {shorten(beta)}.")
        self.loss_type = loss_type
        self.beta = beta

    def forward(self, data: list[Tensor], state: State) -> Tensor:
        """Return the loss."""
        y_pred, y_true = data
        if self.loss_type == "L1":
            loss = self.backend.l1_loss(y_true, y_pred)
        elif self.loss_type == "Smooth":
            loss = self.backend.smooth_l1_loss(y_true, y_pred, self.beta)
        else:
            loss = self.backend.huber(y_true, y_pred, self.beta)
        return self.backend.mean_of_losses(loss) if self.average_loss else loss
