"""One value of each sample, by its index."""

from __future__ import annotations

from typing import Any

from fastnet.op.tensorop.tensorop import TensorOp
from fastnet.types import Keys, Names, State, Tensor
from fastnet.util import to_list


class Gather(TensorOp):
    """Select the value at an index of each sample, or the largest value.

    See `TensorOp` for `mode` and `ds_id`.

    Args:
        inputs: Key(s) of tensors, shape (batch, n, ...).
        outputs: Key(s) of the values, as many, shape (batch, ...).
        indices: Key(s) of indices, shape (batch,) or (batch, 1): one for all inputs, or one for
            each. None, or indices of length 0, select the largest values along axis 1.

    Raises:
        ValueError: In a network, if the number of outputs is not that of the inputs, or that of the
            indices is neither 1 nor that of the inputs.

    >>> import torch
    >>> op = Gather("x", "y", indices="at")
    >>> op.forward([torch.tensor([1, 0]), torch.tensor([[0.1, 0.9], [0.8, 0.2]])], {})
    [tensor([0.9000, 0.8000])]
    """

    resolved_from = ("num_indices",)

    def __init__(
        self,
        inputs: Keys,
        outputs: Keys,
        indices: Keys | None = None,
        mode: Names = None,
        ds_id: Names = None,
    ) -> None:
        index_keys, value_keys = list(to_list(indices)), list(to_list(inputs))
        super().__init__(inputs=index_keys + value_keys, outputs=outputs, mode=mode, ds_id=ds_id)
        self.in_list = self.out_list = True
        self.num_indices = len(index_keys)

    def check_keys(self) -> None:
        """Check the numbers of inputs, outputs and indices."""
        count = self.num_indices
        index_keys, value_keys = self.inputs[:count], self.inputs[count:]
        if not value_keys or len(value_keys) != len(self.outputs):
            raise ValueError(
                f"Gather writes one output for each input, but its inputs are {value_keys} and its "
                f"outputs {self.outputs}."
            )
        if len(index_keys) > 1 and len(index_keys) != len(value_keys):
            raise ValueError(
                f"Gather takes one key of indices for all inputs, or one for each input, but its "
                f"indices are {index_keys} and its inputs {value_keys}."
            )

    def _recreate(self, library_class: Any) -> Gather:
        count = self.num_indices
        recreated: Gather = library_class(
            self.inputs[count:], list(self.outputs), self.inputs[:count]
        )
        return recreated

    def forward(self, data: list[Tensor], state: State) -> list[Tensor]:
        """Select the values from the tensors, which follow the indices in `data`."""
        count = self.num_indices
        if count == 0:
            return self._largest(data)
        first = data[0]
        # A batch without indices may contain an empty list instead of a tensor.
        if len(data) == 2 and type(first) is not list and first.shape[0]:
            return [self.backend.gather_from_batch(data[1], first)]
        indices, tensors = data[:count], data[count:]
        if len(indices) == 1:
            indices = indices * len(tensors)

        def largest() -> list[Tensor]:
            return self._largest(tensors)

        def gathered() -> list[Tensor]:
            return [
                self.backend.gather_from_batch(tensor, index)
                for tensor, index in zip(tensors, indices, strict=True)
            ]

        lengths = [_length(index) for index in indices]
        if 0 in lengths:
            return largest()
        if None not in lengths:
            return gathered()
        # In a TensorFlow graph the length may be known at run time only.
        empty = self.backend.get_shape(indices[0])[0] == 0
        chosen: list[Tensor] = self.backend.when(empty, largest, gathered)
        return chosen

    def _largest(self, tensors: list[Tensor]) -> list[Tensor]:
        return [self.backend.reduce_max(tensor, (1,), False) for tensor in tensors]


def _length(indices: Any) -> Any:
    return len(indices) if isinstance(indices, list) else indices.shape[0]
