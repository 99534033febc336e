"""Ops: the steps that a network is composed of."""

from typing import TYPE_CHECKING

from fastnet.util.lazy import attach

if TYPE_CHECKING:
    from fastnet.op import numpyop, tensorop
    from fastnet.op.op import Op, get_inputs_by_op, write_outputs_by_op

__all__ = ["Op", "get_inputs_by_op", "numpyop", "tensorop", "write_outputs_by_op"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__,
        {"Op": "op", "get_inputs_by_op": "op", "write_outputs_by_op": "op"},
        submodules=["numpyop", "tensorop"],
    )
