"""Ops that augment the samples of a batch."""

from typing import TYPE_CHECKING

from fastnet.util.lazy import attach

if TYPE_CHECKING:
    from fastnet.op.tensorop.augmentation.cutmix_batch import CutMixBatch
    from fastnet.op.tensorop.augmentation.mixup_batch import MixUpBatch

__all__ = ["CutMixBatch", "MixUpBatch"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__, {"CutMixBatch": "cutmix_batch", "MixUpBatch": "mixup_batch"}
    )
