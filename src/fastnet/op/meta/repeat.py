"""An op that runs several times."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fastnet.errors import shorten
from fastnet.op.checks import is_int
from fastnet.op.meta.meta_op import SingleMetaOp
from fastnet.op.op import is_delete
from fastnet.types import Forward, State


class RepeatOp(SingleMetaOp):
    """Run an op several times, or while a condition holds."""

    resolved_from = ("repeat", "max_iter")

    def __init__(
        self, op: Any, repeat: int | Callable[..., bool] = 1, max_iter: int | None = None
    ) -> None:
        self.check_ops([op])
        self.repeat_inputs = _read_repeat(repeat, max_iter)
        read = list(op.inputs)
        read += [key for key in self.repeat_inputs if key not in [*op.outputs, *read]]
        super().__init__([op], read, op.outputs)
        self.repeat = repeat
        self.max_iter = max_iter

    def _anew(self, own: Any) -> Any:
        return own(self.op, self.repeat, self.max_iter)

    def make_run(self, option: Any) -> Forward:
        """Return the function that runs the op repeatedly."""
        inputs, outputs, repeat = self.inputs, self.outputs, self.repeat
        if isinstance(repeat, int):
            return self.chain(inputs, outputs, option, repeat)
        condition, condition_inputs = repeat, self.repeat_inputs
        limit = None if self.max_iter is None else self.max_iter - 1
        deleted = self.op.inputs if is_delete(self.op) else ()
        left = [key for key in inputs if key not in deleted]
        kept = list(dict.fromkeys([*left, *outputs]))
        first = self.chain(inputs, kept, option, again=True)
        later = self.chain(kept, kept, option, again=True)

        def run_while(data: list[Any], state: State) -> Any:
            def again(values: list[Any]) -> Any:
                store = dict(zip(kept, values, strict=True))
                return condition(*[store[key] for key in condition_inputs])

            def once(values: list[Any]) -> Any:
                return later(values, state)

            values = self.control(data).repeat_while(again, once, first(data, state), limit)
            if not isinstance(values, (list, tuple)):
                return values
            store = dict(zip(kept, values, strict=True))
            return [store[key] for key in outputs]

        return run_while


def _read_repeat(repeat: Any, max_iter: Any) -> list[str]:
    """Return the keys that the condition reads, after checking both arguments."""
    if max_iter is not None and (not is_int(max_iter) or max_iter < 1):
        raise ValueError(f"Repeat's max_iter must be at least 1, not {shorten(max_iter)}.")
    if isinstance(repeat, int):
        if repeat < 1:
            raise ValueError(f"Repeat's repeat must be at least 1, not {shorten(repeat)}.")
        if max_iter is not None:
            raise ValueError(
                f"Repeat runs its op {repeat} times, so that max_iter={max_iter} has no effect. "
                "Leave it out."
            )
        return []
    if not callable(repeat):
        raise TypeError(
            f"Repeat's repeat must be an int or a function, not {shorten(repeat)} of type "
            f"{type(repeat).__name__}."
        )
    try:
        return list(inspect.signature(repeat).parameters)
    except ValueError as error:
        raise TypeError(
            f"Repeat's repeat must be a function with arguments named after the keys that it "
            f"reads, but {shorten(repeat)} has no signature. Wrap it in a lambda."
        ) from error
