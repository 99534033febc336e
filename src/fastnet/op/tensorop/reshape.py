"""The same values in another shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fastnet.errors import shorten
from fastnet.op.checks import lengths_of
from fastnet.op.tensorop.of_framework import OfFramework
from fastnet.op.tensorop.per_tensor import PerTensor
from fastnet.types import Tensor

if TYPE_CHECKING:
    import torch


class Reshape(PerTensor):
    """Gives tensors another shape.

    Args:
        inputs: Key(s) of tensors.
        outputs: Key(s) for the results.
        shape: The shape, with the batch. One length may be -1, for what is left.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.

    Raises:
        ValueError: If `shape` is no shape; in a network also if there are not as many outputs as
            inputs.

    >>> import torch
    >>> Reshape("x", "y", shape=(-1, 4)).forward([torch.ones(3, 2, 2)], {})[0].shape
    torch.Size([3, 4])
    """

    _function = OfFramework("reshape")
    _settle_shape = OfFramework("settled_shape")

    resolved_from = ("shape",)

    def __init__(
        self,
        inputs: str | Iterable[str],
        outputs: str | Iterable[str],
        shape: int | Sequence[int],
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        lengths = lengths_of(shape)
        if lengths is None:
            raise ValueError(
                f"Reshape's shape is a length or several, of which one can be -1, to be worked "
                f"out, but got {shorten(shape)}."
            )
        self.shape = lengths
        self._lengths: Any = lengths

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Pick the framework's function, with the shape that the op has now.

        Args:
            framework: "torch" or "tf".
            device: The device that ops run on (torch only).
        """
        super().build(framework, device)
        self._lengths = self._settle_shape(self.shape)

    def apply(self, tensor: Tensor) -> Tensor:
        """Reshape.

        Args:
            tensor: The tensor.

        Returns:
            The same values in the new shape.
        """
        return self._function(tensor, self._lengths)
