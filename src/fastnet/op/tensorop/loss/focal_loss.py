"""Focal loss."""

from __future__ import annotations

from fastnet.backend.losses import check_focal_settings, compute_focal_loss
from fastnet.op.tensorop.loss.loss import PairLoss
from fastnet.types import Names, State, Tensor


class FocalLoss(PairLoss):
    """Focal loss: binary cross-entropy that down-weights well-classified examples.

    ``-alpha * (1 - p) ** gamma * log(p)`` for targets of 1, and ``-(1 - alpha) * p ** gamma *
    log(1 - p)`` for targets of 0. See `TensorOp` for `mode` and `ds_id`. Source: "Focal Loss for
    Dense Object Detection" (Lin et al., 2017).

    Args:
        inputs: Two keys: predictions, shape (batch, ..., classes), and targets of the same shape, 0
            or 1.
        outputs: Key of the loss: a scalar, or a loss for each element that is not reduced.
        gamma: The exponent that down-weights well-classified examples, at least 0.
        alpha: The weight of targets of 1, from 0 to 1. Targets of 0 have the weight ``1 - alpha``.
        sample_reduction: The reduction over samples: "mean", "sum" or "none".
        shape_reduction: The reduction over the elements of each sample, likewise.
        from_logits: Whether the predictions are logits rather than probabilities.
        normalize: Whether to divide the loss of each sample by its number of targets of 1.

    Raises:
        ValueError: If a number is out of range, or a reduction is unknown.

    >>> import torch
    >>> op = FocalLoss(("y_pred", "y"), "loss")
    >>> op.forward([torch.tensor([[0.5, 0.1]]), torch.tensor([[1.0, 0.0]])], {})
    tensor(0.0441)
    """

    resolved_from = (
        "gamma",
        "alpha",
        "sample_reduction",
        "shape_reduction",
        "from_logits",
        "normalize",
    )

    def __init__(
        self,
        inputs: tuple[str, str] | list[str],
        outputs: str,
        gamma: float = 2.0,
        alpha: float = 0.25,
        sample_reduction: str = "mean",
        shape_reduction: str = "sum",
        from_logits: bool = False,
        normalize: bool = True,
        mode: Names = "!infer",
        ds_id: Names = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        check_focal_settings("FocalLoss", gamma, alpha, shape_reduction, sample_reduction)
        self.gamma = gamma
        self.alpha = alpha
        self.sample_reduction = sample_reduction
        self.shape_reduction = shape_reduction
        self.from_logits = from_logits
        self.normalize = normalize

    def forward(self, data: list[Tensor], state: State) -> Tensor:
        """Return the loss."""
        y_pred, y_true = data
        options = self.gamma, self.alpha, self.from_logits, self.normalize
        reductions = self.shape_reduction, self.sample_reduction
        return compute_focal_loss(self.backend, y_true, y_pred, *options, *reductions)
