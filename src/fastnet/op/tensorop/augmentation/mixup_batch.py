"""Samples blended with each other."""

from __future__ import annotations

from collections.abc import Iterable

from fastnet.op.tensorop.augmentation.mixer import Mixer
from fastnet.op.tensorop.of_framework import OfFramework
from fastnet.types import State, Tensor


class MixUpBatch(Mixer):
    """Blends each sample with the one before it, and their labels too.

    The share of a sample is drawn from a beta distribution. As in FastEstimator, the larger of the
    share and its rest is the sample's own part in the blend, while labels are blended by the share
    as it was drawn.

    Args:
        inputs: Two keys: samples, shape (batch, ...), and labels, one-hot, shape (batch, classes).
        outputs: Two keys: the blended samples and the blended labels.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.
        alpha: Both parameters of the beta distribution, more than 0.
        shared_beta: Whether to draw one share for the whole batch, rather than one for each sample.

    Raises:
        AssertionError: If there are not two inputs and two outputs, or `alpha` is not positive.

    Source: "mixup: Beyond Empirical Risk Minimization" (Zhang et al., 2018).
    """

    _mix = OfFramework("mixing.mix_up")

    resolved_from = ("alpha", "shared_beta")

    def __init__(
        self,
        inputs: Iterable[str],
        outputs: Iterable[str],
        mode: str | Iterable[str] | None = "train",
        ds_id: str | Iterable[str] | None = None,
        alpha: float = 1.0,
        shared_beta: bool = False,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id, alpha=alpha)
        self.shared_beta = shared_beta

    def forward(self, data: list[Tensor], state: State) -> tuple[Tensor, Tensor]:
        """Blend.

        Args:
            data: The samples and their labels.
            state: The step's context, not used.

        Returns:
            The blended samples and the blended labels.
        """
        samples, labels = data
        mixed: tuple[Tensor, Tensor] = self._mix(
            samples, labels, self.alpha, self.shared_beta, self.beta
        )
        return mixed
