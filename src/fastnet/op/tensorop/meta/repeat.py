"""An op several times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastnet.op.around import AroundOne
from fastnet.op.meta_checks import parse_repeat
from fastnet.op.op import is_delete
from fastnet.op.tensorop.meta.chain import chain, step_of
from fastnet.op.tensorop.meta.meta_op import MetaOp
from fastnet.types import Forward, State, Tensor


class Repeat(AroundOne, MetaOp):
    """Runs an op several times in a row, a number of times or while a condition holds.

    Args:
        op: The op.
        repeat: How many times; or a condition, whose arguments are called like the keys that it
            reads. It is asked after each time, so that the op runs at least once.
        max_iter: With a condition: how many times at most. None for no limit.

    Raises:
        TypeError: If `op` is no op, or `repeat` neither an int nor a function.
        ValueError: If `repeat` or `max_iter` is less than 1, or `max_iter` is given with a number.

    >>> from fastnet.op.tensorop import LambdaOp
    >>> import torch
    >>> double = LambdaOp(lambda x: 2 * x, "x", "x")
    >>> Repeat(double, repeat=3).forward([torch.tensor(1)], {})
    [tensor(8)]
    >>> Repeat(double, repeat=lambda x: x < 100).forward([torch.tensor(1)], {})
    [tensor(128)]
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

    def make_run(self, retain_graph: bool) -> Forward:
        """Settle what runs the op, again and again.

        Args:
            retain_graph: Whether a later op takes gradients of the same graph.

        Returns:
            What takes the values of the inputs and gives those of the outputs.
        """
        inputs, outputs, repeat = self.inputs, self.outputs, self.repeat
        step = step_of(self.op, 0, True)
        if isinstance(repeat, int):
            last = step if retain_graph else step_of(self.op, 0, False)
            return chain([*[step] * (repeat - 1), last], inputs, outputs)

        condition, condition_inputs = repeat, self.repeat_inputs
        most = None if self.max_iter is None else self.max_iter - 1
        deleted = self.op.inputs if is_delete(self.op) else ()
        left = [key for key in inputs if key not in deleted]
        kept = list(dict.fromkeys([*left, *outputs]))
        first, later = chain([step], inputs, kept), chain([step], kept, kept)

        def run_while(data: list[Tensor], state: State) -> list[Tensor]:
            def again(values: list[Tensor]) -> Any:
                store = dict(zip(kept, values, strict=True))
                return condition(*[store[key] for key in condition_inputs])

            def once(values: list[Tensor]) -> Any:
                return later(values, state)

            values = self.control_for(data).repeat_while(again, once, first(data, state), most)
            store = dict(zip(kept, values, strict=True))
            return [store[key] for key in outputs]

        return run_while
