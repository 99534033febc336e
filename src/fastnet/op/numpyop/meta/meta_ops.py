"""Ops that run other numpy ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from fastnet.op.meta.fuse import FuseOps
from fastnet.op.meta.meta_op import MetaOp
from fastnet.op.meta.one_of import OneOfOps
from fastnet.op.meta.repeat import RepeatOp
from fastnet.op.meta.sometimes import SometimesOp
from fastnet.op.numpyop.numpyop import Batch, NumpyOp, forward_numpyop
from fastnet.types import Forward, State, is_numpy_op

__all__ = ["Fuse", "NumpyMetaOp", "OneOf", "Repeat", "Sometimes"]


class NumpyMetaOp(MetaOp, NumpyOp):
    """An op that runs other numpy ops. Random numbers are drawn from numpy's global generator."""

    kind = "NumpyOp"

    @classmethod
    def check_op(cls, op: Any, index: int) -> bool:
        """Return whether an op is a numpy op; raise a ValueError for a Batch."""
        if isinstance(op, Batch) or hasattr(op, "collate_fn"):
            raise ValueError(
                f"The op {index} of {cls.__name__} is a Batch, which must be an op of a pipeline."
            )
        return is_numpy_op(op)

    def forward(self, data: Any, state: State) -> Any:
        """Run the inner ops on a sample."""
        return self.make_run(None)(data, state)

    def forward_batch(self, data: Any, state: State) -> Any:
        """Run the inner ops on a batch."""
        return self.make_run("np")(data, state)

    def chain(
        self,
        inputs: Sequence[str],
        outputs: Sequence[str],
        option: str | None,
        times: int = 1,
        again: bool = False,
    ) -> Forward:
        """Return the function that runs all inner ops in order; see `MetaOp.chain`."""

        def run(data: Any, state: State) -> Any:
            store = dict(zip(inputs, data, strict=True))
            for _ in range(times):
                filtered = forward_numpyop(self.ops, store, state, batched=option)
                if filtered is not None:
                    return filtered
            return [store[key] for key in outputs]

        return run

    def forward_of(self, op: Any, option: str | None) -> Forward:
        """Return the forward of an inner op for samples or batches."""
        forward: Forward = op.forward if option is None else op.forward_batch
        return forward

    def choose(self, prob: float, yes: Forward, no: Forward) -> Forward:
        """Return a function that calls one of two at random."""
        return lambda data, state: (yes if prob > np.random.uniform() else no)(data, state)

    def control(self, data: Any) -> Any:
        """Return the functions that choose and repeat."""
        return _CONTROL

    def set_rua_level(self, magnitude_coef: float) -> None:
        """Set the strength of the inner ops, for FastEstimator's RUA.

        Args:
            magnitude_coef: The strength, from 0 to 1.

        Raises:
            AttributeError: If an inner op has no such setting.
        """
        for op in self.ops:
            if not callable(getattr(op, "set_rua_level", None)):
                raise AttributeError(
                    f"RUA sets the strength of its ops, but {type(op).__name__}, inside of "
                    f"{type(self).__name__}, has no set_rua_level."
                )
            op.set_rua_level(magnitude_coef=magnitude_coef)


def _one_of(probs: Sequence[float] | None, branches: Sequence[Callable[[], Any]]) -> Any:
    # Without probabilities numpy draws other numbers from the same seed, as FastEstimator does.
    return branches[int(np.random.choice(len(branches), p=probs))]()


def _repeat_while(
    condition: Callable[[Any], Any], body: Callable[[Any], Any], values: Any, limit: int | None
) -> Any:
    count = 0
    # An op may return FilteredData in place of a list.
    while isinstance(values, list) and (limit is None or count < limit) and condition(values):
        values = body(values)
        count += 1
    return values


_CONTROL = SimpleNamespace(one_of=_one_of, repeat_while=_repeat_while)


class Fuse(FuseOps, NumpyMetaOp):
    """Run numpy ops in order, as one op. See `fastnet.op.tensorop.meta.Fuse`.

    Args:
        ops: The ops, in order. They share their modes and dataset ids.

    Raises:
        ValueError: If there is no op, one of them is a Batch, or the modes or dataset ids differ.
        TypeError: If something is not a numpy op.

    >>> from fastnet.op.numpyop import LambdaOp
    >>> op = Fuse([LambdaOp(lambda x: x + 1, "x", "y"), LambdaOp(lambda y: y * 2, "y", "z")])
    >>> op.inputs, op.outputs, op.forward([1], {})
    (['x'], ['y', 'z'], [2, 4])
    """


class OneOf(OneOfOps, NumpyMetaOp):
    """Run one of several numpy ops, drawn at random for each sample or batch.

    See `fastnet.op.tensorop.meta.OneOf` for the errors.

    Args:
        numpy_ops: The ops. They share their inputs, outputs, modes and dataset ids.
        probs: The probability of each op, with a sum of 1. None for equal probabilities.

    >>> from fastnet.op.numpyop import LambdaOp
    >>> ops = [LambdaOp(lambda x, n=n: x + n, "x", "x") for n in (1, 2)]
    >>> OneOf(*ops, probs=[0.0, 1.0]).forward([0], {})
    2
    """

    def __init__(self, *numpy_ops: Any, probs: Sequence[float] | None = None) -> None:
        super().__init__(*numpy_ops, probs=probs)


class Repeat(RepeatOp, NumpyMetaOp):
    """Run a numpy op several times, or while a condition holds.

    See `fastnet.op.tensorop.meta.Repeat` for the errors.

    Args:
        op: The op.
        repeat: The number of times; or a condition, with arguments named after the keys that it
            reads. It is called after each run, so that the op runs at least once.
        max_iter: The maximum number of times for a condition. None for no limit.

    >>> from fastnet.op.numpyop import LambdaOp
    >>> double = LambdaOp(lambda x: 2 * x, "x", "x")
    >>> Repeat(double, repeat=3).forward([1], {})
    [8]
    >>> Repeat(double, repeat=lambda x: x < 100).forward([1], {})
    [128]
    """


class Sometimes(SometimesOp, NumpyMetaOp):
    """Run a numpy op with a probability, drawn for each sample or batch.

    Otherwise its outputs stay as they are, so that they must exist before the op. See
    `fastnet.op.tensorop.meta.Sometimes` for the errors.

    Args:
        numpy_op: The op.
        prob: The probability that it runs, from 0 to 1.

    >>> from fastnet.op.numpyop import LambdaOp
    >>> op = Sometimes(LambdaOp(lambda x: x + 1, "x", "y"), prob=1.0)
    >>> op.inputs, op.forward([1, 0], {})
    (['x', 'y'], [2])
    """

    def __init__(self, numpy_op: Any, prob: float = 0.5) -> None:
        super().__init__(numpy_op, prob)
