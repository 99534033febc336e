"""Focal loss."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from fastnet.backend.focal import compute
from fastnet.errors import shorten
from fastnet.op.checks import is_number
from fastnet.op.tensorop.loss.loss import LossOp
from fastnet.op.tensorop.of_framework import WithFramework
from fastnet.types import State, Tensor

_REDUCTIONS = ("none", "mean", "sum")


class FocalLoss(LossOp):
    """Compares yes-or-no predictions with the truth, with little weight on what is easy.

    Args:
        inputs: Two keys: predictions, shape (batch, ..., classes), and truth, of the same shape, 0
            or 1.
        outputs: The key to write the loss under.
        gamma: How fast the weight of the easy falls, 0 or more.
        alpha: The weight of yes, from 0 to 1; that of no is the rest.
        sample_reduction: What becomes of the samples: "mean", "sum", or "none" to keep a loss for
            each.
        shape_reduction: What becomes of the classes of a sample, likewise.
        from_logits: Whether the predictions are logits rather than probabilities.
        normalize: Whether to divide the loss of a sample by how many of its classes are yes.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.

    Raises:
        ValueError: If a number is out of its range, or a reduction is none of the three; in a
            network also if there are not two inputs and one output.

    Source: "Focal Loss for Dense Object Detection" (Lin et al., 2017).
    """

    _compute = WithFramework(compute)

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
        mode: str | Iterable[str] | None = "!infer",
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        # a bare one even where a list of one key was given
        self.out_list = False
        if not _within(gamma, math.inf):
            raise ValueError(f"FocalLoss's gamma is 0 or more, not {shorten(gamma)}.")
        if not _within(alpha, 1):
            raise ValueError(f"FocalLoss's alpha is from 0 to 1, not {shorten(alpha)}.")
        for name, given in (
            ("sample_reduction", sample_reduction),
            ("shape_reduction", shape_reduction),
        ):
            if given not in _REDUCTIONS:
                raise ValueError(
                    f"FocalLoss's {name} is one of {list(_REDUCTIONS)}, not {shorten(given)}."
                )
        self.gamma = gamma
        self.alpha = alpha
        self.sample_reduction = sample_reduction
        self.shape_reduction = shape_reduction
        self.from_logits = from_logits
        self.normalize = normalize

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
        return self._compute(
            y_true,
            y_pred,
            self.gamma,
            self.alpha,
            self.from_logits,
            self.normalize,
            self.shape_reduction,
            self.sample_reduction,
        )


def _within(value: Any, most: float) -> bool:
    return is_number(value) and 0 <= value <= most
