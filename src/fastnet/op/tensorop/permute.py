"""Permutation of axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastnet.errors import shorten
from fastnet.op.checks import read_permutation
from fastnet.op.tensorop.tensorop import PerTensor
from fastnet.types import Keys, Names, State, Tensor

if TYPE_CHECKING:
    import torch


class Permute(PerTensor):
    """Permute the axes of tensors, by default from channels last to channels first.

    As in FastEstimator, and unlike other ops of one output per input, it works on a single value
    rather than on a list if `inputs` is a string. See `TensorOp` for `mode` and `ds_id`.

    Args:
        inputs: Key(s) of tensors with as many axes as `permutation` has.
        outputs: Key(s) of the results.
        permutation: For each axis of a result, the axis of the input, as in `torch.permute`.

    Raises:
        ValueError: If `permutation` does not contain each axis once.

    >>> import torch
    >>> Permute("x", "y").forward(torch.ones(8, 28, 30, 3), {}).shape
    torch.Size([8, 3, 28, 30])
    """

    resolved_from = ("permutation",)

    def __init__(
        self,
        inputs: Keys,
        outputs: Keys,
        permutation: Sequence[int] = (0, 3, 1, 2),
        mode: Names = None,
        ds_id: Names = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        order = read_permutation(permutation)
        if not order:
            raise ValueError(
                f"Permute's permutation must contain each axis once, counted from 0, but got "
                f"{shorten(permutation)}."
            )
        self.in_list = self.out_list = not isinstance(inputs, str)
        self.permutation = order
        self._order: Any = order

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Prepare the permutation; see `TensorOp.build`."""
        super().build(framework, device)
        self._order = self.backend.prepare_permutation(self.permutation)

    def apply(self, tensor: Tensor) -> Tensor:
        """Return one tensor with its axes permuted."""
        return self.backend.permute(tensor, self._order)

    def forward(self, data: Tensor | list[Tensor], state: State) -> Tensor | list[Tensor]:
        """Permute the axes of a tensor, or of each tensor of a list."""
        return super().forward(data, state) if type(data) is list else self.apply(data)
