"""Tensors in another shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastnet.errors import shorten
from fastnet.op.checks import read_shape
from fastnet.op.tensorop.tensorop import PerTensor
from fastnet.types import Keys, Names, Tensor

if TYPE_CHECKING:
    import torch


class Reshape(PerTensor):
    """Reshape tensors. See `TensorOp` for `mode` and `ds_id`.

    Args:
        inputs: Key(s) of tensors.
        outputs: Key(s) of the results.
        shape: The new shape, including the batch axis. One length may be -1 to be inferred.

    Raises:
        ValueError: If `shape` is not a shape.

    >>> import torch
    >>> Reshape("x", "y", shape=(-1, 4)).forward([torch.ones(3, 2, 2)], {})[0].shape
    torch.Size([3, 4])
    """

    resolved_from = ("shape",)

    def __init__(
        self,
        inputs: Keys,
        outputs: Keys,
        shape: int | Sequence[int],
        mode: Names = None,
        ds_id: Names = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        lengths = read_shape(shape)
        if lengths is None:
            raise ValueError(
                f"Reshape's shape must be an int or ints, at most one of them -1, but got "
                f"{shorten(shape)}."
            )
        self.shape = lengths
        self._lengths: Any = lengths

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Prepare the shape; see `TensorOp.build`."""
        super().build(framework, device)
        self._lengths = self.backend.prepare_shape(self.shape)

    def apply(self, tensor: Tensor) -> Tensor:
        """Return one tensor in the new shape."""
        return self.backend.reshape(tensor, self._lengths)
