"""Boxes of images pasted into others."""

from __future__ import annotations

from typing import Any

from fastnet.op.tensorop.augmentation.mixer import Mixer
from fastnet.types import Tensor


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

    def mix(self, mixing: Any, samples: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Paste a box, the same for the whole batch.

        Args:
            mixing: The framework's functions.
            samples: The images.
            labels: Their labels.

        Returns:
            The mixed images and the mixed labels.

        Raises:
            ValueError: If the samples are no images.
        """
        if len(samples.shape) != 4:
            raise ValueError(
                f"CutMixBatch reads images, which have 4 axes with the batch and the channels, but "
                f"'{self.inputs[0]}' has {len(samples.shape)}."
            )
        mixed: tuple[Tensor, Tensor] = mixing.cut_mix(samples, labels, self.alpha)
        return mixed
