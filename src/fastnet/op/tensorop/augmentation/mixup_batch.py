"""Mixup of the samples of a batch."""

from __future__ import annotations

from typing import Any

from fastnet.errors import shorten
from fastnet.op.checks import is_number
from fastnet.op.tensorop.tensorop import TensorOp
from fastnet.types import Keys, Names, State, Tensor


class MixUpBatch(TensorOp):
    """Mixup: blend each sample, and its label, with the previous one of the batch.

    ``x = s * x + (1 - s) * roll(x, 1)`` with ``share ~ Beta(alpha, alpha)`` and ``s = max(share, 1
    - share)``. As in FastEstimator, labels are blended with `share` itself. See `TensorOp` for
    `mode` and `ds_id`. Source: "mixup: Beyond Empirical Risk Minimization" (Zhang et al., 2018).

    Args:
        inputs: Two keys: samples, shape (batch, ...), and one-hot labels, shape (batch, classes).
        outputs: Two keys: the blended samples and labels, of the same shapes.
        alpha: Both parameters of the beta distribution, positive.
        shared_beta: Whether to draw one share for the whole batch instead of one per sample.

    Raises:
        AssertionError: If there are not two inputs and two outputs, or `alpha` is not positive.

    >>> import torch
    >>> op = MixUpBatch(("x", "y"), ("x", "y"), alpha=0.2)
    >>> x, y = op.forward([torch.rand(4, 3), torch.eye(4)], {})
    >>> x.shape, y.shape
    (torch.Size([4, 3]), torch.Size([4, 4]))
    """

    resolved_from = ("alpha", "shared_beta")

    def __init__(
        self,
        inputs: Keys,
        outputs: Keys,
        mode: Names = "train",
        ds_id: Names = None,
        alpha: float = 1.0,
        shared_beta: bool = False,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        check_mixing(self, alpha)
        self.alpha = alpha
        self.shared_beta = shared_beta
        self.beta: Any = None
        """A distribution with a `sample` method to draw from instead, or None."""

    def forward(self, data: list[Tensor], state: State) -> tuple[Tensor, Tensor]:
        """Return the blended samples and labels."""
        samples, labels = data
        mixed: tuple[Tensor, Tensor] = self.backend.mix_up(
            samples, labels, self.alpha, self.shared_beta, self.beta
        )
        return mixed


def check_mixing(op: TensorOp, alpha: Any) -> None:
    """Raise an AssertionError unless an op mixes samples and labels, with a positive alpha."""
    name = type(op).__name__
    if not is_number(alpha) or not alpha > 0:
        raise AssertionError(f"{name}'s alpha must be positive, not {shorten(alpha)}.")
    if len(op.inputs) != 2 or len(op.outputs) != 2:
        raise AssertionError(
            f"{name} reads and writes two keys, samples and labels, but its inputs are "
            f"{op.inputs} and its outputs {op.outputs}."
        )
