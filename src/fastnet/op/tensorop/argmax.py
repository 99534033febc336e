"""The index of the largest value."""

from __future__ import annotations

from fastnet.errors import shorten
from fastnet.op.checks import is_int
from fastnet.op.tensorop.tensorop import PerTensor
from fastnet.types import Keys, Names, Tensor


class Argmax(PerTensor):
    """Return the indices of the largest values along an axis.

    See `TensorOp` for `mode` and `ds_id`.

    Args:
        inputs: Key(s) of tensors of any shape.
        outputs: Key(s) of the indices, int64, of the inputs' shapes without the axis.
        axis: The axis; a negative one counts from the end.

    Raises:
        ValueError: If `axis` is not an int.

    >>> import torch
    >>> Argmax("x", "y", axis=1).forward([torch.tensor([[0.1, 0.9], [0.8, 0.2]])], {})
    [tensor([1, 0])]
    """

    resolved_from = ("axis",)

    def __init__(
        self, inputs: Keys, outputs: Keys, axis: int = 0, mode: Names = None, ds_id: Names = None
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        if not is_int(axis):
            raise ValueError(f"Argmax's axis must be an int, not {shorten(axis)}.")
        self.axis = axis

    def apply(self, tensor: Tensor) -> Tensor:
        """Return the indices for one tensor."""
        return self.backend.argmax(tensor, self.axis)
