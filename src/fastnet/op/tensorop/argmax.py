"""The place of the largest value."""

from __future__ import annotations

from collections.abc import Iterable

from fastnet.errors import shorten
from fastnet.op.checks import is_int
from fastnet.op.tensorop.of_framework import OfFramework
from fastnet.op.tensorop.per_tensor import PerTensor
from fastnet.types import Tensor


class Argmax(PerTensor):
    """Finds where along an axis the largest values stand.

    Args:
        inputs: Key(s) of tensors of any shape.
        outputs: Key(s) for the places, of the inputs' shapes without the axis, int64.
        axis: The axis, which may be counted from the end.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.

    Raises:
        ValueError: If `axis` is no int; in a network also if there are not as many outputs as
            inputs.

    >>> import torch
    >>> Argmax("x", "y", axis=1).forward([torch.tensor([[0.1, 0.9], [0.8, 0.2]])], {})
    [tensor([1, 0])]
    """

    _function = OfFramework("argmax")

    resolved_from = ("axis",)

    def __init__(
        self,
        inputs: str | Iterable[str],
        outputs: str | Iterable[str],
        axis: int = 0,
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        if not is_int(axis):
            raise ValueError(f"Argmax's axis is an int, not {shorten(axis)}.")
        self.axis = axis

    def apply(self, tensor: Tensor) -> Tensor:
        """Find the places of the largest values.

        Args:
            tensor: The values.

        Returns:
            Their places along the axis.
        """
        return self._function(tensor, self.axis)
