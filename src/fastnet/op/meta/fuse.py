"""Several ops as one."""

from __future__ import annotations

from typing import Any

from fastnet.op.meta.meta_op import MetaOp
from fastnet.op.op import is_delete
from fastnet.types import Forward
from fastnet.util.collections import to_list


class FuseOps(MetaOp):
    """Run ops in order."""

    def __init__(self, ops: Any) -> None:
        ops = list(to_list(ops))
        self.check_ops(ops)
        # Dicts serve as ordered sets.
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

    def _anew(self, own: Any) -> Any:
        return own(self.ops)

    def make_run(self, option: Any) -> Forward:
        """Return the function that runs the ops in order."""
        return self.chain(self.inputs, self.outputs, option)
