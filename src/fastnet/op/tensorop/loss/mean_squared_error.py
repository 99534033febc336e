"""Mean squared error."""

from __future__ import annotations

from fastnet.op.tensorop.loss.pair_loss import PairLoss
from fastnet.op.tensorop.of_framework import OfFramework
from fastnet.types import State, Tensor


class MeanSquaredError(PairLoss):
    """Averages squared differences.

    Args:
        inputs: Two keys: predictions and truth, of one shape (batch, ...).
        outputs: The key to write the loss under: a scalar, or, without averaging, a loss of the
            shape without its last axis.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.
        average_loss: Whether to write the mean, rather than a loss for each sample.

    Raises:
        ValueError: In a network, if there are not two inputs and one output.
    """

    _loss = OfFramework("losses.mean_squared_error")
    resolved_from = ("average_loss",)

    def forward(self, data: list[Tensor], state: State) -> Tensor:
        """Compute the loss.

        Args:
            data: Predictions and truth.
            state: The step's context, not used.

        Returns:
            The loss.
        """
        y_pred, y_true = data
        # averages over all axes at once
        return self._loss(y_true, y_pred, self.average_loss)
