"""The mean of several tensors."""

from __future__ import annotations

from collections.abc import Iterable

from fastnet.op.tensorop.tensorop import TensorOp
from fastnet.types import State, Tensor


class Average(TensorOp):
    """Averages tensors element by element.

    Args:
        inputs: Keys of tensors of one shape.
        outputs: Key for their mean, of the same shape.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.

    Raises:
        ValueError: In a network, if there is no input, or not one output.

    >>> import torch
    >>> Average(["a", "b"], "mean").forward([torch.tensor([1.0]), torch.tensor([4.0])], {})
    tensor([2.5000])
    """

    def __init__(
        self,
        inputs: str | Iterable[str],
        outputs: str,
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        self.in_list, self.out_list = True, False

    def check_keys(self) -> None:
        """Refuse no input, and other than one output, when a network is made of the op.

        Raises:
            ValueError: If those are what it has.
        """
        if not self.inputs or len(self.outputs) != 1:
            raise ValueError(
                f"Average writes one output, the mean of its inputs, but its inputs are "
                f"{self.inputs} and its outputs {self.outputs}."
            )

    def forward(self, data: list[Tensor], state: State) -> Tensor:
        """Average.

        Args:
            data: The tensors.
            state: The step's context, not used.

        Returns:
            Their mean.
        """
        total = data[0]
        for tensor in data[1:]:
            total = total + tensor
        return total / len(data)
