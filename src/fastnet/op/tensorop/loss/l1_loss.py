"""Absolute differences, in three forms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastnet import backend
from fastnet.op.checks import is_number
from fastnet.op.tensorop.loss.loss import LossOp
from fastnet.types import State, Tensor

if TYPE_CHECKING:
    import torch

# the forms, and the functions that compute them
_FUNCTIONS = {"L1": "l1_loss", "Smooth": "smooth_l1_loss", "Huber": "huber"}


class L1_Loss(LossOp):
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
        ValueError: If there are not two inputs and one output, there is no such type, or `beta` is
            not positive.
    """

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
        self.require_pair()
        if loss_type not in _FUNCTIONS:
            raise ValueError(
                f"L1_Loss's loss_type is one of {list(_FUNCTIONS)}, not {loss_type!r}."
            )
        if not is_number(beta) or not beta > 0:
            raise ValueError(f"L1_Loss's beta is more than 0, not {beta!r}.")
        self.loss_type = loss_type
        self.beta = beta
        self._options: dict[str, Any] = {} if loss_type == "L1" else {"beta": beta}
        self._loss: Callable[..., Tensor] = getattr(backend, _FUNCTIONS[loss_type])
        self._mean: Callable[..., Tensor] = backend.reduce_mean

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Pick the framework's functions.

        Args:
            framework: "torch" or "tf".
            device: The device that ops run on (torch only).
        """
        functions = import_module(f"fastnet.backend.{framework}")
        self._loss = getattr(functions.losses, _FUNCTIONS[self.loss_type])
        self._mean = functions.reduce_mean

    def forward(self, data: list[Tensor], state: State) -> Tensor:
        """Compute the loss.

        Args:
            data: Predictions and truth.
            state: The step's context, not used.

        Returns:
            The loss.
        """
        y_pred, y_true = data
        loss = self._loss(y_true, y_pred, **self._options)
        return self._mean(loss, None, False) if self.average_loss else loss
