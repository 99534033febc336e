"""Some values of each sample."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastnet.op.tensorop.of_framework import OfFramework
from fastnet.op.tensorop.tensorop import TensorOp
from fastnet.types import State, Tensor
from fastnet.util import to_list

# the axis along which values are taken
_SECOND = (1,)


class Gather(TensorOp):
    """Takes from each sample the value at an index, or its largest value.

    Args:
        inputs: Key(s) of tensors, shape (batch, n, ...).
        outputs: Key(s) for the values, as many, shape (batch, ...).
        indices: Key(s) of indices, shape (batch,) or (batch, 1): one for all inputs, or one for
            each. None to take the largest value along axis 1; so do indices of length 0.
        mode: Mode(s) to run in; "!mode" for all but one; None for all.
        ds_id: Dataset id(s) to run on; "!id" for all but one; None for all.

    Raises:
        ValueError: In a network, if there are not as many outputs as inputs, or neither one set of
            indices nor one for each input.

    >>> import torch
    >>> op = Gather("x", "y", indices="at")
    >>> op.forward([torch.tensor([1, 0]), torch.tensor([[0.1, 0.9], [0.8, 0.2]])], {})
    [tensor([0.9000, 0.8000])]
    """

    _gather = OfFramework("gather_from_batch")
    _largest = OfFramework("reduce_max")
    _get_shape = OfFramework("get_shape")
    _when = OfFramework("control.when")

    resolved_from = ("num_indices",)

    def __init__(
        self,
        inputs: str | Iterable[str],
        outputs: str | Iterable[str],
        indices: str | Iterable[str] | None = None,
        mode: str | Iterable[str] | None = None,
        ds_id: str | Iterable[str] | None = None,
    ) -> None:
        places = list(to_list(indices))
        sources = list(to_list(inputs))
        super().__init__(inputs=places + sources, outputs=outputs, mode=mode, ds_id=ds_id)
        self.in_list = self.out_list = True
        self.num_indices = len(places)

    def check_keys(self) -> None:
        """Refuse outputs and indices that are not the inputs', when a network is made of the op.

        Raises:
            ValueError: If those are what it has.
        """
        count = self.num_indices
        places, sources = self.inputs[:count], self.inputs[count:]
        if not sources or len(sources) != len(self.outputs):
            raise ValueError(
                f"Gather writes one output for each input, but its inputs are {sources} and its "
                f"outputs {self.outputs}."
            )
        if len(places) > 1 and len(places) != len(sources):
            raise ValueError(
                f"Gather takes one set of indices, or one for each input, but its indices are "
                f"{places} and its inputs {sources}."
            )

    def _anew(self, own: Any) -> TensorOp:
        count = self.num_indices
        made: TensorOp = own(self.inputs[count:], list(self.outputs), self.inputs[:count])
        return made

    def forward(self, data: list[Tensor], state: State) -> list[Tensor]:
        """Take the values.

        Args:
            data: The indices, then the tensors.
            state: The step's context, not used.

        Returns:
            A value for each sample of each tensor.
        """
        count = self.num_indices
        if count == 0:
            return [self._largest(tensor, _SECOND, False) for tensor in data]
        first = data[0]
        # a batch may have an empty list where it has no indices
        if len(data) == 2 and type(first) is not list and first.shape[0]:
            return [self._gather(data[1], first)]
        indices, tensors = data[:count], data[count:]
        if len(indices) == 1:
            indices = indices * len(tensors)

        def largest() -> list[Tensor]:
            return [self._largest(tensor, _SECOND, False) for tensor in tensors]

        def gathered() -> list[Tensor]:
            return [self._gather(*pair) for pair in zip(tensors, indices, strict=True)]

        lengths = [_length(each) for each in indices]
        if 0 in lengths:
            return largest()
        if None not in lengths:
            return gathered()
        # known only in the step, and the same for all but where an op is to fail anyway
        empty = self._get_shape(indices[0])[0] == 0
        chosen: list[Tensor] = self._when(empty, largest, gathered)
        return chosen


def _length(indices: Any) -> Any:
    return len(indices) if isinstance(indices, list) else indices.shape[0]
