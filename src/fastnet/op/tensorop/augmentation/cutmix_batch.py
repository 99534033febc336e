"""Boxes of images pasted into others."""

from __future__ import annotations

from fastnet.op.tensorop.augmentation.mixer import Mixer
from fastnet.op.tensorop.of_framework import OfFramework
from fastnet.types import State, Tensor


class CutMixBatch(Mixer):
    """Pastes a box of each image into the next one of the batch, and mixes their labels alike.

    Args:
        inputs: Two keys: images, shape (batch, channels, height, width) in torch and (batch,
            height, width, channels) in TensorFlow, and labels, one-hot, shape (batch, classes).
        outputs: Two keys: the mixed images and the mixed labels.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.
        alpha: Both parameters of the beta distribution that the box's share of the area is drawn
            from, more than 0.

    Raises:
        AssertionError: If there are not two inputs and two outputs, or `alpha` is not positive.

    Source: "CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features"
    (Yun et al., 2019).
    """

    _mix = OfFramework("mixing.cut_mix")

    resolved_from = ("alpha",)

    def forward(self, data: list[Tensor], state: State) -> tuple[Tensor, Tensor]:
        """Paste a box, the same for the whole batch.

        Args:
            data: The images and their labels.
            state: The step's context, not used.

        Returns:
            The mixed images and the mixed labels.

        Raises:
            ValueError: If the samples are no images.
        """
        images, labels = data
        if len(images.shape) != 4:
            raise ValueError(
                f"CutMixBatch reads images, which have 4 axes with the batch and the channels, but "
                f"'{self.inputs[0]}' has {len(images.shape)}."
            )
        mixed: tuple[Tensor, Tensor] = self._mix(images, labels, self.alpha, self.beta)
        return mixed
