"""A numpy op several times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastnet.op.around import AroundOne
from fastnet.op.meta_checks import parse_repeat
from fastnet.op.numpyop.meta.meta_op import MetaNumpyOp
from fastnet.types import State

__all__ = ["Repeat"]


class Repeat(AroundOne, MetaNumpyOp):
    """Runs a numpy op several times in a row, a number of times or while a condition holds.

    Args:
        op: The op.
        repeat: How many times; or a condition, whose arguments are called like the keys that it
            reads. It is asked after each time, so that the op runs at least once.
        max_iter: With a condition: how many times at most. None for no limit.

    Raises:
        TypeError: If `op` is no numpy op, or `repeat` neither an int nor a function.
        ValueError: If `op` is a Batch, `repeat` or `max_iter` is less than 1, or `max_iter` is
            given with a number.

    >>> from fastnet.op.numpyop import LambdaOp
    >>> double = LambdaOp(lambda x: 2 * x, "x", "x")
    >>> Repeat(double, repeat=3).forward([1], {})
    [8]
    >>> Repeat(double, repeat=lambda x: x < 100).forward([1], {})
    [128]
    """

    resolved_from = ("repeat", "max_iter")

    def __init__(
        self, op: Any, repeat: int | Callable[..., bool] = 1, max_iter: int | None = None
    ) -> None:
        self.require_ops([op])
        self.repeat_inputs = parse_repeat(repeat, max_iter)
        read = list(op.inputs)
        read += [key for key in self.repeat_inputs if key not in [*op.outputs, *read]]
        super().__init__([op], read, op.outputs)
        self.repeat = repeat
        self.max_iter = max_iter

    def _anew(self, own: Any) -> Repeat:
        made: Repeat = own(self.op, self.repeat, self.max_iter)
        return made

    def run(self, data: list[Any], state: State, batched: str | None) -> Any:
        """Run the op, again and again.

        Args:
            data: The values of the inputs.
            state: The context.
            batched: "np" for a batch, None for a sample.

        Returns:
            The values of the outputs, or what leaves the data out.
        """
        store = dict(zip(self.inputs, data, strict=True))
        count = 0
        while True:
            results = self.run_ops(self.ops, store, state, batched)
            count += 1
            if not isinstance(results, list) or not self._goes_on(count, store):
                return results

    def _goes_on(self, count: int, store: dict[str, Any]) -> bool:
        if isinstance(self.repeat, int):
            return count < self.repeat
        if self.max_iter is not None and count >= self.max_iter:
            return False
        return bool(self.repeat(*[store[key] for key in self.repeat_inputs]))
