"""Volumes in another size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fastnet.errors import shorten
from fastnet.op.checks import is_int, lengths_of
from fastnet.op.tensorop.of_framework import OfFramework
from fastnet.op.tensorop.per_tensor import PerTensor
from fastnet.types import Tensor

RESIZE_MODES = ("nearest", "area")


class Resize3D(PerTensor):
    """Resizes volumes.

    Args:
        inputs: Key(s) of volumes, shape (batch, channels, height, width, depth) in torch and
            (batch, height, width, depth, channels) in TensorFlow.
        outputs: Key(s) for the results.
        output_shape: The new height, width and depth.
        resize_mode: "nearest" or "area".
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.

    Raises:
        AssertionError: If `resize_mode` is neither.
        ValueError: If `output_shape` is not three lengths; in a network also if there are not as
            many outputs as inputs.

    >>> import torch
    >>> Resize3D("x", "y", output_shape=(2, 2, 3)).forward([torch.ones(1, 1, 4, 4, 4)], {})[0].shape
    torch.Size([1, 1, 2, 2, 3])
    """

    _function = OfFramework("resize_3d")

    resolved_from = ("output_shape", "resize_mode")

    def __init__(
        self,
        inputs: str | Iterable[str],
        outputs: str | Iterable[str],
        output_shape: Sequence[int],
        resize_mode: str = "nearest",
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        if resize_mode not in RESIZE_MODES:
            raise AssertionError(
                f"Resize3D's resize_mode is one of {list(RESIZE_MODES)}, not "
                f"{shorten(resize_mode)}."
            )
        lengths = None if is_int(output_shape) else lengths_of(output_shape)
        if lengths is None or len(lengths) != 3 or min(lengths) < 1:
            raise ValueError(
                f"Resize3D's output_shape is a height, a width and a depth, without batch and "
                f"channels, not {shorten(output_shape)}."
            )
        self.output_shape = lengths
        self.resize_mode = resize_mode

    def apply(self, tensor: Tensor) -> Tensor:
        """Resize.

        Args:
            tensor: The volumes.

        Returns:
            The volumes in the new size.

        Raises:
            ValueError: If these are no volumes.
        """
        if len(tensor.shape) != 5:
            raise ValueError(
                f"Resize3D reads volumes, which have 5 axes with the batch and the channels, but "
                f"got a tensor of {len(tensor.shape)}."
            )
        return self._function(tensor, self.output_shape, self.resize_mode)
