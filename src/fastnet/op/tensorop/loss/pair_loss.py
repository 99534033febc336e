"""What losses share that compare predictions with the truth by one function."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastnet.op.tensorop.loss.loss import LossOp
from fastnet.op.tensorop.of_framework import OfFramework
from fastnet.types import State, Tensor


class PairLoss(LossOp):
    """A loss of two tensors of one shape. Derive from it, and name the function.

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

    _loss: Any
    # what takes the truth and the predictions: an `OfFramework`
    _mean = OfFramework("losses.mean_of_losses")

    def __init__(
        self,
        inputs: tuple[str, str] | list[str],
        outputs: str,
        mode: str | Iterable[str] | None = "!infer",
        ds_id: str | Iterable[str] | None = None,
        average_loss: bool = True,
    ) -> None:
        super().__init__(
            inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id, average_loss=average_loss
        )
        # a bare one even where a list of one key was given
        self.out_list = False

    def check_keys(self) -> None:
        """Refuse anything but two inputs and one output, when a network is made of the op.

        Raises:
            ValueError: If there are more or fewer.
        """
        self.require_pair()

    def forward(self, data: list[Tensor], state: State) -> Tensor:
        """Compute the loss.

        Args:
            data: Predictions and truth.
            state: The step's context, not used.

        Returns:
            The loss.
        """
        y_pred, y_true = data
        loss = self._loss(y_true, y_pred)
        return self._mean(loss) if self.average_loss else loss
