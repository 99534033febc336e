"""CutMix of the images of a batch."""

from __future__ import annotations

from typing import Any

from fastnet.op.tensorop.augmentation.mixup_batch import check_mixing
from fastnet.op.tensorop.tensorop import TensorOp
from fastnet.types import Keys, Names, State, Tensor


class CutMixBatch(TensorOp):
    """CutMix: paste a box of each image into the next one of the batch, and mix the labels alike.

    The box is the same for the whole batch. See `TensorOp` for `mode` and `ds_id`. Source: "CutMix:
    Regularization Strategy to Train Strong Classifiers with Localizable Features" (Yun et al.,
    2019).

    Args:
        inputs: Two keys: images, shape (batch, channels, height, width) in torch and (batch,
            height, width, channels) in TensorFlow, and one-hot labels, shape (batch, classes).
        outputs: Two keys: the mixed images and labels, of the same shapes.
        alpha: Both parameters of the beta distribution of the box's share of the area, positive.

    Raises:
        AssertionError: If there are not two inputs and two outputs, or `alpha` is not positive.
        ValueError: In a step, if the images do not have 4 axes.

    >>> import torch
    >>> op = CutMixBatch(("x", "y"), ("x", "y"))
    >>> x, y = op.forward([torch.rand(4, 3, 8, 8), torch.eye(4)], {})
    >>> x.shape, y.shape
    (torch.Size([4, 3, 8, 8]), torch.Size([4, 4]))
    """

    resolved_from = ("alpha",)

    def __init__(
        self,
        inputs: Keys,
        outputs: Keys,
        mode: Names = "train",
        ds_id: Names = None,
        alpha: float = 1.0,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        check_mixing(self, alpha)
        self.alpha = alpha
        self.beta: Any = None
        """A distribution with a `sample` method to draw from instead, or None."""

    def forward(self, data: list[Tensor], state: State) -> tuple[Tensor, Tensor]:
        """Return the mixed images and labels."""
        images, labels = data
        if len(images.shape) != 4:
            raise ValueError(
                f"CutMixBatch takes images, which have 4 axes including batch and channels, but "
                f"'{self.inputs[0]}' has {len(images.shape)}."
            )
        mixed: tuple[Tensor, Tensor] = self.backend.cut_mix(images, labels, self.alpha, self.beta)
        return mixed
