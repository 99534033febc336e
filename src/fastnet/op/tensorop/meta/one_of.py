"""One op of several."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from fastnet.op.meta_checks import parse_op_probabilities, require_same_keys
from fastnet.op.tensorop.meta.chain import forward_of
from fastnet.op.tensorop.meta.meta_op import MetaOp
from fastnet.types import Forward, State


class OneOf(MetaOp):
    """Runs one of several ops, drawn anew in each step.

    Args:
        tensor_ops: The ops. They share their inputs, outputs, modes and dataset ids.
        probs: The probability of each, adding up to 1. None if all are equally likely.

    Raises:
        ValueError: If there is no op.
        AssertionError: If they differ in their inputs, outputs, modes or dataset ids, or the
            probabilities are not one for each, of at least 0, adding up to 1.
        TypeError: If something is no op.

    >>> from fastnet.op.tensorop import LambdaOp
    >>> import torch
    >>> ops = [LambdaOp(lambda x, n=n: x + n, "x", "x") for n in (1, 2)]
    >>> OneOf(*ops, probs=[0.0, 1.0]).forward([torch.tensor(0)], {})
    tensor(2)
    """

    resolved_from = ("probs",)

    def __init__(self, *tensor_ops: Any, probs: Sequence[float] | None = None) -> None:
        self.require_ops(tensor_ops, AssertionError)
        require_same_keys(tensor_ops)
        count = len(tensor_ops)
        self.probs = parse_op_probabilities(probs, count) or [1 / count] * count
        first = tensor_ops[0]
        super().__init__(tensor_ops, first.inputs, first.outputs)
        self.in_list, self.out_list = first.in_list, first.out_list

    def resolve_settings(self, changed: Sequence[str] = ()) -> None:
        """Check what was written to the op, or to those in it, and run them as they are now.

        Args:
            changed: The names of the settings that changed.

        Raises:
            AssertionError: As for `__init__`.
            TypeError: As for `__init__`.
            ValueError: As for `__init__`.
        """
        super().resolve_settings(changed)
        self.in_list, self.out_list = self.ops[0].in_list, self.ops[0].out_list

    def _anew(self, own: Any) -> OneOf:
        made: OneOf = own(*self.ops, probs=self.probs)
        return made

    def make_run(self, retain_graph: bool) -> Forward:
        """Settle what runs an op.

        Args:
            retain_graph: Whether a later op takes gradients of the same graph.

        Returns:
            What takes the value of the input, or a list of values, and gives the output's.
        """
        forwards = [forward_of(op, retain_graph) for op in self.ops]
        probs = self.probs

        def run(data: Any, state: State) -> Any:
            branches = [partial(forward, data, state) for forward in forwards]
            return self.control_for(data).one_of(probs, branches)

        return run
