"""An op with a probability."""

from __future__ import annotations

from typing import Any

from fastnet.op.tensorop.meta.meta_op import MetaOp, run_op
from fastnet.types import State, Tensor


class Sometimes(MetaOp):
    """Runs an op in some steps, drawn anew in each.

    In the other steps its outputs stay what they were, so that they must be there before: an op in
    front can give a key its first value.

    Args:
        tensor_op: The op.
        prob: How likely it is to run, from 0 to 1.

    Raises:
        TypeError: If `tensor_op` is no op.
        ValueError: If `prob` is no probability.

    >>> from fastnet.op.tensorop import LambdaOp
    >>> import torch
    >>> op = Sometimes(LambdaOp(lambda x: x + 1, "x", "y"), prob=1.0)
    >>> op.inputs, op.forward([torch.tensor(1), torch.tensor(0)], {})
    (['x', 'y'], [tensor(2)])
    """

    def __init__(self, tensor_op: Any, prob: float = 0.5) -> None:
        self.require_ops([tensor_op])
        if not 0 <= prob <= 1:
            raise ValueError(f"Sometimes has a probability from 0 to 1, not {prob!r}.")
        self.extra_inputs = [key for key in tensor_op.outputs if key not in tensor_op.inputs]
        super().__init__([tensor_op], list(tensor_op.inputs) + self.extra_inputs, tensor_op.outputs)
        self.op = tensor_op
        self.prob = prob

    def run(self, data: list[Tensor], state: State, retain_graph: bool) -> list[Tensor]:
        """Run the op, or leave its outputs as they are.

        Args:
            data: The values of the inputs.
            state: The step's context.
            retain_graph: Whether a later op takes gradients of the same graph.

        Returns:
            The values of the outputs.
        """
        before = dict(zip(self.inputs, data, strict=True))

        def run() -> list[Tensor]:
            store = dict(before)
            run_op(self.op, 0, store, state, retain_graph)
            return [store[key] for key in self.outputs]

        def leave() -> list[Tensor]:
            return [before[key] for key in self.outputs]

        values: list[Tensor] = self.control_for(data).choose(self.prob, run, leave)
        return values
