"""Several ops as one."""

from __future__ import annotations

from typing import Any

from fastnet.op.op import is_delete, takes_gradients
from fastnet.op.tensorop.meta.chain import chain, step_of
from fastnet.op.tensorop.meta.meta_op import MetaOp
from fastnet.types import Forward
from fastnet.util import to_list


class Fuse(MetaOp):
    """Runs ops one after the other, as one op: for a scheduler, or inside of another meta op.

    It reads what the ops read before one of them writes it, and writes all that they write
    and leave there.

    Args:
        ops: The ops, in order. They share their modes and dataset ids.

    Raises:
        ValueError: If there is no op, or they differ in their modes or dataset ids.
        TypeError: If something is no op.

    >>> from fastnet.op.tensorop import LambdaOp
    >>> ops = [LambdaOp(lambda x: x + 1, "x", "y"), LambdaOp(lambda y: y * 2, "y", "z")]
    >>> op = Fuse(ops)
    >>> op.inputs, op.outputs, op.forward([1], {})
    (['x'], ['y', 'z'], [2, 4])
    """

    def __init__(self, ops: Any) -> None:
        ops = list(to_list(ops))
        self.require_ops(ops)
        # dicts are sets that keep their order
        inputs: dict[str, None] = {}
        outputs: dict[str, None] = {}
        written: set[str] = set()
        for op in ops:
            inputs.update((key, None) for key in op.inputs if key not in written)
            written.update(op.outputs)
            if is_delete(op):
                for key in op.inputs:
                    outputs.pop(key, None)
            outputs.update(dict.fromkeys(op.outputs))
        super().__init__(ops, inputs, outputs)
        takers = [place for place, op in enumerate(ops) if takes_gradients(op)]
        self._last_taker = takers[-1] if takers else -1

    def _anew(self, own: Any) -> Fuse:
        made: Fuse = own(self.ops)
        return made

    def make_run(self, retain_graph: bool) -> Forward:
        """Settle what runs the ops in order.

        Args:
            retain_graph: Whether a later op takes gradients of the same graph.

        Returns:
            What takes the values of the inputs and gives those of the outputs.
        """
        last = self._last_taker
        steps = [
            step_of(op, place, retain_graph or place != last) for place, op in enumerate(self.ops)
        ]
        return chain(steps, self.inputs, self.outputs)
