"""Several numpy ops as one."""

from __future__ import annotations

from typing import Any

from fastnet.op.numpyop.meta.meta_op import MetaNumpyOp
from fastnet.op.op import is_delete
from fastnet.types import State
from fastnet.util.collections import to_list

__all__ = ["Fuse"]


class Fuse(MetaNumpyOp):
    """Runs numpy ops one after the other, as one op.

    It reads what the ops read before one of them writes it, and writes all that they write and
    none of them deletes.

    Args:
        ops: The ops, in order. They share their modes and dataset ids.

    Raises:
        ValueError: If there is no op, one of them is a Batch, or they differ in their modes or
            dataset ids.
        TypeError: If something is no numpy op.

    >>> from fastnet.op.numpyop import LambdaOp
    >>> op = Fuse([LambdaOp(lambda x: x + 1, "x", "y"), LambdaOp(lambda y: y * 2, "y", "z")])
    >>> op.inputs, op.outputs, op.forward([1], {})
    (['x'], ['y', 'z'], [2, 4])
    """

    def __init__(self, ops: Any) -> None:
        ops = list(to_list(ops))
        self.require_ops(ops)
        # dicts are sets that keep their order
        inputs: dict[str, None] = {}
        outputs: dict[str, None] = {}
        for op in ops:
            for key in op.inputs:
                if key in outputs and is_delete(op):
                    del outputs[key]
                elif key not in outputs:
                    inputs[key] = None
            outputs.update(dict.fromkeys(op.outputs))
        super().__init__(ops, inputs, outputs)

    def _anew(self, own: Any) -> Fuse:
        made: Fuse = own(self.ops)
        return made

    def run(self, data: list[Any], state: State, batched: str | None) -> Any:
        """Run the ops in order.

        Args:
            data: The values of the inputs.
            state: The context.
            batched: "np" for a batch, None for a sample.

        Returns:
            The values of the outputs, or what leaves the data out.
        """
        store = dict(zip(self.inputs, data, strict=True))
        return self.run_ops(self.ops, store, state, batched)
