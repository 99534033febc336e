"""One op of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastnet.op.settings import bind_settings, takes_gradients
from fastnet.op.tensorop.meta.meta_op import MetaOp
from fastnet.types import State


class OneOf(MetaOp):
    """Runs one of several ops, drawn anew in each step.

    Args:
        tensor_ops: The ops. They share their inputs, outputs, modes and dataset ids.
        probs: How likely each is, together 1. None for all alike.

    Raises:
        ValueError: If there is no op, or they differ in their modes or dataset ids.
        AssertionError: If they differ in their inputs or outputs, or the probabilities are not one
            for each, from 0, together 1.
        TypeError: If something is no op.

    >>> from fastnet.op.tensorop import LambdaOp
    >>> import torch
    >>> ops = [LambdaOp(lambda x, n=n: x + n, "x", "x") for n in (1, 2)]
    >>> OneOf(*ops, probs=[0.0, 1.0]).forward([torch.tensor(0)], {})
    tensor(2)
    """

    def __init__(self, *tensor_ops: Any, probs: Sequence[float] | None = None) -> None:
        self.require_ops(tensor_ops)
        first = tensor_ops[0]
        for place, op in enumerate(tensor_ops):
            for name in ("inputs", "outputs", "in_list", "out_list"):
                if getattr(op, name) != getattr(first, name):
                    raise AssertionError(
                        f"The ops of OneOf share their {name}, but its op 0 has "
                        f"{getattr(first, name)} and its op {place} {getattr(op, name)}."
                    )
        count = len(tensor_ops)
        self.probs = list(probs) if probs else [1 / count] * count
        fair = min(self.probs) >= 0 and abs(sum(self.probs) - 1) <= 1e-8  # which no NaN is
        if len(self.probs) != count or not fair:
            raise AssertionError(
                f"OneOf's probs are one for each of its {count} ops, from 0, together 1, not "
                f"{self.probs}."
            )
        super().__init__(tensor_ops, first.inputs, first.outputs)
        self.in_list, self.out_list = first.in_list, first.out_list

    def run(self, data: Any, state: State, retain_graph: bool) -> Any:
        """Run an op.

        Args:
            data: The value of the input, or a list of values.
            state: The step's context.
            retain_graph: Whether a later op takes gradients of the same graph.

        Returns:
            The value of the output, or a list of values.
        """

        def branch(op: Any) -> Any:
            forward = op.forward
            if takes_gradients(op):
                forward = bind_settings(op, defer=False, retain_graph=retain_graph)
            return lambda: forward(data, state)

        return self.control_for(data).one_of(self.probs, [branch(op) for op in self.ops])
