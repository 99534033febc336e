"""Absolute differences, in three forms."""

from __future__ import annotations

from collections.abc import Iterable

from fastnet.errors import shorten
from fastnet.op.checks import is_number
from fastnet.op.tensorop.loss.pair_loss import PairLoss
from fastnet.op.tensorop.of_framework import OfFramework
from fastnet.types import State, Tensor

_TYPES = ("L1", "Smooth", "Huber")


class L1_Loss(PairLoss):
    """Averages absolute differences, smoothed near zero if wanted.

    Args:
        inputs: Two keys: predictions and truth, of one shape (batch, ...).
        outputs: The key to write the loss under: a scalar, or, without averaging, a loss of the
            shape without its last axis.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.
        average_loss: Whether to write the mean, rather than a loss for each sample.
        loss_type: "L1" for plain absolute differences; "Smooth" for squares of the differences
            below `beta`, divided by it; "Huber" for squares below `beta`, and differences times
            `beta` above.
        beta: Where squares end, more than 0.

    Raises:
        ValueError: If there is no such type, or `beta` is not positive; in a network also if there
            are not two inputs and one output.
    """

    _absolute = OfFramework("losses.l1_loss")
    _smooth = OfFramework("losses.smooth_l1_loss")
    _huber = OfFramework("losses.huber")

    resolved_from = ("average_loss", "loss_type", "beta")

    def __init__(
        self,
        inputs: tuple[str, str] | list[str],
        outputs: str,
        mode: str | Iterable[str] | None = "!infer",
        ds_id: str | Iterable[str] | None = None,
        average_loss: bool = True,
        loss_type: str = "L1",
        beta: float = 1.0,
    ) -> None:
        super().__init__(
            inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id, average_loss=average_loss
        )
        if loss_type not in _TYPES:
            raise ValueError(
                f"L1_Loss's loss_type is one of {list(_TYPES)}, not {shorten(loss_type)}."
            )
        if not is_number(beta) or not beta > 0:
            raise ValueError(f"L1_Loss's beta is more than 0, not {shorten(beta)}.")
        self.loss_type = loss_type
        self.beta = beta

    def forward(self, data: list[Tensor], state: State) -> Tensor:
        """Compute the loss.

        Args:
            data: Predictions and truth.
            state: The step's context, not used.

        Returns:
            The loss.
        """
        y_pred, y_true = data
        if self.loss_type == "L1":
            loss = self._absolute(y_true, y_pred)
        elif self.loss_type == "Smooth":
            loss = self._smooth(y_true, y_pred, self.beta)
        else:
            loss = self._huber(y_true, y_pred, self.beta)
        return self._mean(loss) if self.average_loss else loss
