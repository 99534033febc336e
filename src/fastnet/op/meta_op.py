"""Base classes of ops that run other ops, on tensors or on arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence, Sized
from functools import partial
from typing import Any, ClassVar

from fastnet.errors import shorten
from fastnet.op.checks import describe_wrong_item, is_int, is_number
from fastnet.op.op import Op, is_delete
from fastnet.types import Forward, State
from fastnet.util.collections import to_list


class MetaOp(Op):
    """An op that runs other ops, with keys, modes and dataset ids that follow from theirs.

    A derived class for tensors or arrays defines how ops are chained and chosen. The `option` of
    its methods is whether to retain the graph for tensors, and whether data is a batch for arrays.

    Args:
        ops: The ops, which share their modes and dataset ids.
        inputs: The keys that they need.
        outputs: The keys that they write.
    """

    kind: ClassVar[str]
    """The class that the inner ops must have, for error texts."""

    check_op: Callable[[Any, int], bool]
    """Returns whether an op, with its index, can be an inner op."""

    ops: list[Any]
    """The inner ops."""

    make_run: Callable[[Any], Forward]
    """Returns the function of the inputs and the state that runs the inner ops, for an option."""

    chain: Callable[..., Forward]
    """Returns a function that runs all inner ops in order. Takes the keys of inputs and outputs,
    an option, `times`, and `may_repeat`: whether the ops may run again after it."""

    forward_of: Callable[[Any, Any], Forward]
    """Returns the forward of an inner op for an option."""

    choose: Callable[[float, Forward, Forward], Forward]
    """Returns a function that calls the first of two with a probability, otherwise the second."""

    control: Callable[[Any], Any]
    """Returns an object with the functions `one_of` and `repeat_while`, for some inputs."""

    def __init__(self, ops: Sequence[Any], inputs: Iterable[str], outputs: Iterable[str]) -> None:
        super().__init__(
            inputs=list(inputs), outputs=list(outputs), mode=ops[0].mode, ds_id=ops[0].ds_id
        )
        self.ops = list(ops)
        self._applied_io_names = self._io_names()

    @classmethod
    def check_ops(cls, ops: Sequence[Any], mismatch: type[Exception] = ValueError) -> None:
        """Raise an error unless the ops are of the right kind and share modes and dataset ids."""
        if not ops:
            raise ValueError(f"{cls.__name__} runs other ops, but got none.")
        for index, op in enumerate(ops):
            if not cls.check_op(op, index):
                described = describe_wrong_item(op, f"a {cls.kind}")
                raise TypeError(f"The op {index} of {cls.__name__} is {described}")
            for name in ("mode", "ds_id"):
                first_names, names = getattr(ops[0], name), getattr(op, name)
                if names != first_names:
                    raise mismatch(
                        f"The ops of {cls.__name__} must share one {name}, but its op 0 has "
                        f"{sorted(first_names) or 'all'} and its op {index} "
                        f"{sorted(names) or 'all'}."
                    )

    def inner_ops(self) -> list[Any]:
        """Return a new list of the inner ops."""
        return list(self.ops)

    def resolve_settings(self, changed: Sequence[str] = ()) -> None:
        """Apply changes of the op or of its inner ops; see `Op.resolve_settings`."""
        self._set_io(self.inputs, self.outputs, self.mode, self.ds_id)
        library_class = self.library_class()
        recreated: Any = self._recreate(library_class)
        # Keys that the user has assigned stay until those of the inner ops change.
        if recreated._io_names() != self._applied_io_names:
            self._set_io(*recreated._io_names())
        self.in_list, self.out_list = recreated.in_list, recreated.out_list
        names = (*library_class.resolved_from, "ops", "extra_inputs", "repeat_inputs")
        self._copy_settings_from(recreated, names)

    def _io_names(self) -> tuple[list[str], list[str], set[str], set[str]]:
        """Return the keys, modes and dataset ids."""
        return list(self.inputs), list(self.outputs), set(self.mode), set(self.ds_id)


class SingleMetaOp(MetaOp):
    """An op that runs one other op."""

    @property
    def op(self) -> Any:
        """The inner op."""
        return self.ops[0]

    @op.setter
    def op(self, op: Any) -> None:
        self.ops = [op]


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
            inputs.update(dict.fromkeys(key for key in op.inputs if key not in written))
            written.update(op.outputs)
            if is_delete(op):
                for key in op.inputs:
                    outputs.pop(key, None)
            outputs.update(dict.fromkeys(op.outputs))
        super().__init__(ops, inputs, outputs)

    def _recreate(self, library_class: Any) -> Any:
        return library_class(self.ops)

    def make_run(self, option: Any) -> Forward:
        """Return the function that runs the ops in order."""
        return self.chain(self.inputs, self.outputs, option)


class OneOfOps(MetaOp):
    """Run one of several ops, drawn at random in each step."""

    resolved_from = ("probs",)

    def __init__(self, *ops: Any, probs: Sequence[float] | None = None) -> None:
        self.check_ops(ops, AssertionError)
        first = ops[0]
        for index, op in enumerate(ops):
            for name in ("inputs", "outputs", "in_list", "out_list"):
                if getattr(op, name) != getattr(first, name):
                    raise AssertionError(
                        f"The ops of OneOf must share their {name}, but its op 0 has "
                        f"{getattr(first, name)} and its op {index} {getattr(op, name)}."
                    )
        self.probs = _read_probabilities(probs, len(ops))
        super().__init__(ops, first.inputs, first.outputs)
        self.in_list, self.out_list = first.in_list, first.out_list

    def _recreate(self, library_class: Any) -> Any:
        return library_class(*self.ops, probs=self.probs)

    def make_run(self, option: Any) -> Forward:
        """Return the function that runs one of the ops."""
        forwards = [self.forward_of(op, option) for op in self.ops]
        probs = self.probs

        def run(data: Any, state: State) -> Any:
            branches = [partial(forward, data, state) for forward in forwards]
            return self.control(data).one_of(probs, branches)

        return run


def _read_probabilities(probs: Any, count: int) -> list[float] | None:
    """Return one probability for each op, or None if none are given."""
    if probs is None or (isinstance(probs, Sized) and len(probs) == 0):
        return None
    shares = list(probs) if isinstance(probs, Iterable) else []
    # The comparisons are written so that NaN fails them.
    if not (
        len(shares) == count
        and all(map(is_number, shares))
        and min(shares) >= 0
        and abs(sum(shares) - 1) <= 1e-8
    ):
        raise AssertionError(
            f"OneOf's probs must be one probability for each of its {count} ops, with a sum of 1, "
            f"not {shorten(probs)}."
        )
    return shares


class RepeatOp(SingleMetaOp):
    """Run an op several times, or while a condition holds."""

    resolved_from = ("repeat", "max_iter")

    def __init__(
        self, op: Any, repeat: int | Callable[..., bool] = 1, max_iter: int | None = None
    ) -> None:
        self.check_ops([op])
        self.repeat_inputs = _read_repeat(repeat, max_iter)
        condition_keys = [
            key for key in self.repeat_inputs if key not in op.inputs and key not in op.outputs
        ]
        super().__init__([op], [*op.inputs, *condition_keys], op.outputs)
        self.repeat = repeat
        self.max_iter = max_iter

    def _recreate(self, library_class: Any) -> Any:
        return library_class(self.op, self.repeat, self.max_iter)

    def make_run(self, option: Any) -> Forward:
        """Return the function that runs the op repeatedly."""
        inputs, outputs, repeat = self.inputs, self.outputs, self.repeat
        if is_int(repeat):
            return self.chain(inputs, outputs, option, repeat)
        condition: Any = repeat
        condition_inputs = self.repeat_inputs
        # The first run is outside of the loop, because it precedes the condition.
        limit = None if self.max_iter is None else self.max_iter - 1
        deleted = self.op.inputs if is_delete(self.op) else ()
        remaining_inputs = [key for key in inputs if key not in deleted]
        loop_keys = list(dict.fromkeys([*remaining_inputs, *outputs]))
        first_run = self.chain(inputs, loop_keys, option, may_repeat=True)
        later_run = self.chain(loop_keys, loop_keys, option, may_repeat=True)

        def run_while(data: list[Any], state: State) -> Any:
            def condition_holds(values: list[Any]) -> Any:
                store = dict(zip(loop_keys, values, strict=True))
                return condition(*[store[key] for key in condition_inputs])

            def run_body(values: list[Any]) -> Any:
                return later_run(values, state)

            repeat_while = self.control(data).repeat_while
            values = repeat_while(condition_holds, run_body, first_run(data, state), limit)
            if not isinstance(values, (list, tuple)):
                return values
            store = dict(zip(loop_keys, values, strict=True))
            return [store[key] for key in outputs]

        return run_while


def _read_repeat(repeat: Any, max_iter: Any) -> list[str]:
    """Return the keys that the condition reads, after checking both arguments."""
    if max_iter is not None and (not is_int(max_iter) or max_iter < 1):
        raise ValueError(f"Repeat's max_iter must be at least 1, not {shorten(max_iter)}.")
    if is_int(repeat):
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


class SometimesOp(SingleMetaOp):
    """Run an op with a probability, drawn in each step."""

    resolved_from = ("prob",)

    def __init__(self, op: Any, prob: float = 0.5) -> None:
        self.check_ops([op])
        if not is_number(prob) or not 0 <= prob <= 1:
            raise ValueError(f"Sometimes's prob must be from 0 to 1, not {shorten(prob)}.")
        self.extra_inputs = [key for key in op.outputs if key not in op.inputs]
        super().__init__([op], [*op.inputs, *self.extra_inputs], op.outputs)
        self.prob = prob

    def _recreate(self, library_class: Any) -> Any:
        return library_class(self.op, self.prob)

    def make_run(self, option: Any) -> Forward:
        """Return the function that runs the op, or returns its outputs as they were."""
        run = self.chain(self.inputs, self.outputs, option)
        indices = [self.inputs.index(key) for key in self.outputs]

        def skip(data: list[Any], state: State) -> list[Any]:
            return [data[index] for index in indices]

        return self.choose(self.prob, run, skip)
