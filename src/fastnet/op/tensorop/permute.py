"""Axes in another order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fastnet.errors import shorten
from fastnet.op.checks import axes_in_order
from fastnet.op.tensorop.of_framework import OfFramework
from fastnet.op.tensorop.per_tensor import PerTensor
from fastnet.types import State, Tensor

if TYPE_CHECKING:
    import torch


class Permute(PerTensor):
    """Puts the axes of tensors into another order.

    As in FastEstimator, and unlike ops of its kind, it takes and gives a bare tensor where its
    input is named by a string.

    Args:
        inputs: Key(s) of tensors with as many axes as `permutation` names.
        outputs: Key(s) for the results.
        permutation: For each axis of a result, which axis of the input it is. As it is, it turns
            images with their channels last into images with their channels first.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.

    Raises:
        ValueError: If `permutation` leaves out an axis or names one twice; in a network also if
            there are not as many outputs as inputs.

    >>> import torch
    >>> Permute("x", "y").forward(torch.ones(8, 28, 30, 3), {}).shape
    torch.Size([8, 3, 28, 30])
    """

    _function = OfFramework("permute")
    _settle_order = OfFramework("settled_order")

    resolved_from = ("permutation",)

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
                f"{shorten(permutation)}."
            )
        self.in_list = self.out_list = not isinstance(inputs, str)
        self.permutation = order
        self._order: Any = order

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Pick the framework's function, with the order that the op has now.

        Args:
            framework: "torch" or "tf".
            device: The device that ops run on (torch only).
        """
        super().build(framework, device)
        self._order = self._settle_order(self.permutation)

    def apply(self, tensor: Tensor) -> Tensor:
        """Reorder the axes.

        Args:
            tensor: The tensor.

        Returns:
            The tensor with its axes in the new order.
        """
        return self._function(tensor, self._order)

    def forward(self, data: Tensor | list[Tensor], state: State) -> Tensor | list[Tensor]:
        """Reorder the axes of each input.

        Args:
            data: The value, or a list of values.
            state: The step's context, not used.

        Returns:
            The value of the output, or a list of values.
        """
        return super().forward(data, state) if type(data) is list else self.apply(data)
