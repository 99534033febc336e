"""Ops that run other numpy ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from fastnet.op.meta_op import MetaOp
from fastnet.op.numpyop.numpyop import Batch, NumpyOp, forward_numpyop
from fastnet.types import Forward, State, is_numpy_op

__all__ = ["NumpyMetaOp"]


class NumpyMetaOp(MetaOp, NumpyOp):
    """An op that runs other numpy ops. Random numbers are drawn from numpy's global generator.

    The `option` of `MetaOp` is the `batched` of `forward_numpyop`: None for a sample.
    """

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
        may_repeat: bool = False,
    ) -> Forward:
        """Return the function that runs all inner ops in order; see `MetaOp.chain`.

        `option` is the `batched` of `forward_numpyop`.
        """

        def run(data: Any, state: State) -> Any:
            store = dict(zip(inputs, data, strict=True))
            for _ in range(times):
                filtered = forward_numpyop(self.ops, store, state, batched=option)
                if filtered is not None:
                    return filtered
            return [store[key] for key in outputs]

        return run

    def forward_of(self, op: Any, option: str | None) -> Forward:
        """Return the forward of an inner op; `option` is None for samples, "np" for batches."""
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
