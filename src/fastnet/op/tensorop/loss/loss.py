"""The base classes of losses."""

from __future__ import annotations

from typing import ClassVar

from fastnet.op.tensorop.tensorop import TensorOp
from fastnet.types import Keys, Names


class LossOp(TensorOp):
    """A loss of predictions and targets; by itself it returns its input.

    Derive from it and override `forward`. See `TensorOp` for `mode` and `ds_id`.

    Args:
        inputs: Two keys: predictions, targets.
        outputs: Key of the loss.
        average_loss: Whether to return the mean of all losses instead of a loss for each sample.

    >>> import torch
    >>> class Absolute(LossOp):
    ...     def forward(self, data, state):
    ...         y_pred, y_true = data
    ...         loss = self.backend.abs(y_pred - y_true)
    ...         return self.backend.reduce_mean(loss, None, False) if self.average_loss else loss
    >>> Absolute(("y_pred", "y"), "loss").forward([torch.zeros(2), torch.ones(2)], {})
    tensor(1.)
    """

    def __init__(
        self,
        inputs: Keys | None = None,
        outputs: Keys | None = None,
        mode: Names = "!infer",
        ds_id: Names = None,
        average_loss: bool = True,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        self.average_loss = average_loss

    @property
    def true_key(self) -> str:
        """The key of the targets."""
        return self.inputs[self.true_key_idx]

    @property
    def pred_key(self) -> str:
        """The key of the predictions."""
        return self.inputs[self.pred_key_idx]

    @property
    def true_key_idx(self) -> int:
        """The index of the targets in the inputs."""
        return 1

    @property
    def pred_key_idx(self) -> int:
        """The index of the predictions in the inputs."""
        return 0


class PairLoss(LossOp):
    """A loss with exactly two inputs, predictions and targets, and one output. See `LossOp`."""

    n_inputs = 2
    n_outputs = 1
    resolved_from: ClassVar[tuple[str, ...]] = ("average_loss",)

    def __init__(
        self,
        inputs: tuple[str, str] | list[str],
        outputs: str,
        mode: Names = "!infer",
        ds_id: Names = None,
        average_loss: bool = True,
    ) -> None:
        super().__init__(
            inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id, average_loss=average_loss
        )
        # One value is returned even if `outputs` is a list of one key.
        self.out_list = False
