"""An op with a probability."""

from __future__ import annotations

from typing import Any

from fastnet.op.around import AroundOne
from fastnet.op.meta_checks import require_prob
from fastnet.op.tensorop.meta.chain import chain, step_of
from fastnet.op.tensorop.meta.meta_op import MetaOp
from fastnet.types import Forward, State, Tensor


class Sometimes(AroundOne, MetaOp):
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

    resolved_from = ("prob",)

    def __init__(self, tensor_op: Any, prob: float = 0.5) -> None:
        self.require_ops([tensor_op])
        require_prob(prob)
        self.extra_inputs = [key for key in tensor_op.outputs if key not in tensor_op.inputs]
        super().__init__([tensor_op], list(tensor_op.inputs) + self.extra_inputs, tensor_op.outputs)
        self.prob = prob

    def _anew(self, own: Any) -> Sometimes:
        made: Sometimes = own(self.op, self.prob)
        return made

    def make_run(self, retain_graph: bool) -> Forward:
        """Settle what runs the op, or leaves its outputs as they are.

        Args:
            retain_graph: Whether a later op takes gradients of the same graph.

        Returns:
            What takes the values of the inputs and gives those of the outputs.
        """
        change = chain([step_of(self.op, 0, retain_graph)], self.inputs, self.outputs)
        prob = self.prob
        places = [self.inputs.index(key) for key in self.outputs]

        def leave(data: list[Tensor], state: State) -> list[Tensor]:
            return [data[place] for place in places]

        if self._control is not None:
            chosen: Forward = self._control.chooser(prob, change, leave)
            return chosen

        def run(data: list[Tensor], state: State) -> Any:
            return self.control_for(data).chooser(prob, change, leave)(data, state)

        return run
