"""The mean of several tensors."""

from __future__ import annotations

from fastnet.op.tensorop.tensorop import TensorOp
from fastnet.types import Keys, Names, State, Tensor


class Average(TensorOp):
    """Average tensors element by element. See `TensorOp` for `mode` and `ds_id`.

    Args:
        inputs: Key(s) of tensors of the same shape, which are added in their own dtype: cast small
            integers to a floating point dtype first.
        outputs: Key of their mean, of that shape.

    Raises:
        ValueError: In a network, if there is no input, or not one output.

    >>> import torch
    >>> Average(["a", "b"], "mean").forward([torch.tensor([1.0]), torch.tensor([4.0])], {})
    tensor([2.5000])
    """

    n_inputs = "+"
    n_outputs = 1

    def __init__(self, inputs: Keys, outputs: str, mode: Names = None, ds_id: Names = None) -> None:
        super().__init__(inputs=inputs, outputs=outputs, mode=mode, ds_id=ds_id)
        self.in_list, self.out_list = True, False

    def forward(self, data: list[Tensor], state: State) -> Tensor:
        """Return the mean of the tensors."""
        total = data[0]
        for tensor in data[1:]:
            total = total + tensor
        return total / len(data)
