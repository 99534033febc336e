"""One numpy op of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastnet.op.meta_checks import parse_op_probabilities, require_same_keys
from fastnet.op.numpyop.meta.meta_op import MetaNumpyOp
from fastnet.types import State

__all__ = ["OneOf"]


class OneOf(MetaNumpyOp):
    """Runs one of several numpy ops, drawn anew for each sample or batch.

    Args:
        numpy_ops: The ops. They share their inputs, outputs, modes and dataset ids.
        probs: The probability of each, adding up to 1. None if all are equally likely.

    Raises:
        ValueError: If there is no op, or one of them is a Batch.
        AssertionError: If they differ in their inputs, outputs, modes or dataset ids, or the
            probabilities are not one for each, of at least 0, adding up to 1.
        TypeError: If something is no numpy op.

    >>> from fastnet.op.numpyop import LambdaOp
    >>> ops = [LambdaOp(lambda x, n=n: x + n, "x", "x") for n in (1, 2)]
    >>> OneOf(*ops, probs=[0.0, 1.0]).forward([0], {})
    2
    """

    resolved_from = ("probs",)

    def __init__(self, *numpy_ops: Any, probs: Sequence[float] | None = None) -> None:
        self.require_ops(numpy_ops, AssertionError)
        require_same_keys(numpy_ops)
        self.probs = parse_op_probabilities(probs, len(numpy_ops))
        first = numpy_ops[0]
        super().__init__(numpy_ops, first.inputs, first.outputs)
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

    def run(self, data: Any, state: State, batched: str | None) -> Any:
        """Run an op, drawn with numpy's global generator.

        Args:
            data: The value of the input, or a list of values.
            state: The context.
            batched: "np" for a batch, None for a sample.

        Returns:
            The value of the output, or a list of values.
        """
        op = self.ops[int(np.random.choice(len(self.ops), p=self.probs))]
        return op.forward(data, state) if batched is None else op.forward_batch(data, state)
