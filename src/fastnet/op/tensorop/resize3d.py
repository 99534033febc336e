"""Resizing of volumes."""

from __future__ import annotations

from collections.abc import Sequence

from fastnet.backend.images import RESIZE_MODES
from fastnet.errors import shorten
from fastnet.op.checks import is_int, read_shape
from fastnet.op.tensorop.tensorop import PerTensor
from fastnet.types import Keys, Names, Tensor


class Resize3D(PerTensor):
    """Resize volumes. See `TensorOp` for `mode` and `ds_id`.

    Args:
        inputs: Key(s) of volumes, shape (batch, channels, height, width, depth) in torch and
            (batch, height, width, depth, channels) in TensorFlow.
        outputs: Key(s) of the resized volumes.
        output_shape: The new height, width and depth.
        resize_mode: "nearest" or "area".

    Raises:
        AssertionError: If `resize_mode` is neither.
        ValueError: If `output_shape` is not three lengths, or an input does not have 5 axes.

    >>> import torch
    >>> Resize3D("x", "y", output_shape=(2, 2, 3)).forward([torch.ones(1, 1, 4, 4, 4)], {})[0].shape
    torch.Size([1, 1, 2, 2, 3])
    """

    resolved_from = ("output_shape", "resize_mode")

    def __init__(
        self,
        inputs: Keys,
        outputs: Keys,
        output_shape: Sequence[int],
        resize_mode: str = "nearest",
        mode: Names = None,
        ds_id: Names = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        if resize_mode not in RESIZE_MODES:
            raise AssertionError(
                f"Resize3D's resize_mode must be one of {list(RESIZE_MODES)}, not "
                f"{shorten(resize_mode)}."
            )
        lengths = None if is_int(output_shape) else read_shape(output_shape)
        if lengths is None or len(lengths) != 3 or min(lengths) < 1:
            raise ValueError(
                f"Resize3D's output_shape must be a height, a width and a depth, without batch and "
                f"channels, not {shorten(output_shape)}."
            )
        self.output_shape = lengths
        self.resize_mode = resize_mode

    def apply(self, tensor: Tensor) -> Tensor:
        """Return the volumes of one tensor in the new size."""
        if len(tensor.shape) != 5:
            raise ValueError(
                f"Resize3D takes volumes, which have 5 axes including batch and channels, but got "
                f"a tensor with {len(tensor.shape)}."
            )
        return self.backend.resize_3d(tensor, self.output_shape, self.resize_mode)
