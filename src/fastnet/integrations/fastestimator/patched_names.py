"""The names of FastEstimator that `install` replaces."""

from __future__ import annotations

from fastnet import backend

__all__ = ["NETWORK", "OPS", "backend_path"]

NETWORK = {
    "network": ("BaseNetwork", "Network", "TFNetwork", "TorchNetwork", "build"),
}
"""The names that are always replaced, by module without the package's name."""

_BACKEND_MODULES = {"normalize": "_tensor_normalize", "resize_3d": "_resize3d"}


def backend_path(name: str) -> str:
    """Return the module that defines a backend function in FastEstimator.

    Args:
        name: The name of the function.

    Returns:
        The module, without the package's name.
    """
    return f"backend.{_BACKEND_MODULES.get(name, f'_{name}')}"


OPS = {
    "op.op": ("Op",),
    "op.tensorop.argmax": ("Argmax",),
    "op.tensorop.augmentation.cutmix_batch": ("CutMixBatch",),
    "op.tensorop.augmentation.mixup_batch": ("MixUpBatch",),
    "op.tensorop.average": ("Average",),
    "op.tensorop.gather": ("Gather",),
    "op.tensorop.gradient.fgsm": ("FGSM",),
    "op.tensorop.gradient.gradient": ("GradientOp",),
    "op.tensorop.gradient.watch": ("Watch",),
    "op.tensorop.loss.cross_entropy": ("CrossEntropy",),
    "op.tensorop.loss.dice_loss": ("DiceLoss",),
    "op.tensorop.loss.focal_loss": ("FocalLoss",),
    "op.tensorop.loss.hinge": ("Hinge",),
    "op.tensorop.loss.l1_loss": ("L1_Loss",),
    "op.tensorop.loss.l2_regularization": ("L2Regularizaton",),
    "op.tensorop.loss.loss": ("LossOp",),
    "op.tensorop.loss.mean_squared_error": ("MeanSquaredError",),
    "op.tensorop.loss.super_loss": ("SuperLoss",),
    "op.tensorop.meta.fuse": ("Fuse",),
    "op.tensorop.meta.one_of": ("OneOf",),
    "op.tensorop.meta.repeat": ("Repeat",),
    "op.tensorop.meta.sometimes": ("Sometimes",),
    "op.tensorop.model.model": ("ModelOp",),
    "op.tensorop.model.update": ("UpdateOp",),
    "op.tensorop.normalize": ("Normalize",),
    "op.tensorop.permute": ("Permute",),
    "op.tensorop.reshape": ("Reshape",),
    "op.tensorop.resize3d": ("Resize3D",),
    "op.tensorop.tensorop": ("Delete", "LambdaOp", "TensorOp"),
    "op.tensorop.un_hadamard": ("UnHadamard",),
    "schedule.lr_schedule": ("cosine_decay",),
    "schedule.schedule": (
        "EpochScheduler",
        "RepeatScheduler",
        "Scheduler",
        "get_current_items",
        "get_signature_epochs",
    ),
    "slicer.axis_slicer": ("AxisSlicer",),
    "slicer.mean_unslicer": ("MeanUnslicer",),
    "slicer.sliding_slicer": ("SlidingSlicer",),
    "slicer.slicer": ("Slicer", "forward_slicers", "reverse_slicers", "sanity_assert_slicers"),
    **{backend_path(name): (name,) for name in backend.__all__},
}
"""The names that are replaced unless `install(ops=False)` is called, by module."""
