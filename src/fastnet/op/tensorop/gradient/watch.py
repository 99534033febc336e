"""Gradients with respect to tensors that are not weights."""

from __future__ import annotations

from fastnet.op.tensorop.gradient.gradient_base import GradientBase
from fastnet.types import Forward, Keys, Names, State, Tensor


class Watch(GradientBase):
    """Track gradients with respect to tensors of a batch, such as its images.

    See `TensorOp` for `mode` and `ds_id`.

    Args:
        inputs: Key(s) of the tensors, which are also the op's outputs.

    Raises:
        ValueError: In a network, if there is no input.

    >>> import torch
    >>> Watch("x").forward([torch.ones(2)], {"tape": None})
    [tensor([1., 1.], requires_grad=True)]
    """

    n_inputs = "+"
    n_outputs = "same"

    def __init__(self, inputs: Keys | None, mode: Names = None, ds_id: Names = None) -> None:
        super().__init__(inputs=inputs, outputs=inputs, mode=mode, ds_id=ds_id)
        self.in_list = self.out_list = True

    def make_compute(self, retain_graph: bool) -> Forward:
        """Return the function that watches the inputs."""
        watch = self.backend.watch

        def watch_inputs(data: list[Tensor], state: State) -> list[Tensor]:
            tape = state.get("tape")
            return [watch(tensor, tape) for tensor in data]

        return watch_inputs
