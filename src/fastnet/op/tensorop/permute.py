"""Axes in another order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fastnet.op.checks import axes_in_order
from fastnet.op.tensorop.per_tensor import PerTensor
from fastnet.types import Tensor


class Permute(PerTensor):
    """Puts the axes of tensors into another order.

    Args:
        inputs: Key(s) of tensors with as many axes as `permutation` names.
        outputs: Key(s) for the results.
        permutation: For each axis of a result, which axis of the input it is. As it is, it turns
            images with their channels last into images with their channels first.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.

    Raises:
        ValueError: If there are not as many outputs as inputs, or `permutation` leaves out an axis
            or names one twice.

    >>> import torch
    >>> Permute("x", "y").forward([torch.ones(8, 28, 30, 3)], {})[0].shape
    torch.Size([8, 3, 28, 30])
    """

    function_name = "permute"

    def __init__(
        self,
        inputs: str | Iterable[str],
        outputs: str | Iterable[str],
        permutation: Sequence[int] = (0, 3, 1, 2),
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        order = axes_in_order(permutation)
        if not order:
            raise ValueError(
                f"Permute's permutation has each axis in it once, counted from 0, but got "
                f"{permutation!r}."
            )
        self.permutation = order

    def apply(self, tensor: Tensor) -> Tensor:
        """Reorder the axes.

        Args:
            tensor: The tensor.

        Returns:
            The tensor with its axes in the new order.
        """
        return self._function(tensor, self.permutation)
