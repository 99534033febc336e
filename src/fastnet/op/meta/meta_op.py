"""The base class of ops that run other ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from fastnet.op.checks import describe_wrong_item
from fastnet.op.op import Op
from fastnet.types import Forward


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
    an option, `times`, and `again`: whether the ops may run again after it."""

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
        self._derived = self._limits()

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
                first, own = getattr(ops[0], name), getattr(op, name)
                if own != first:
                    raise mismatch(
                        f"The ops of {cls.__name__} must share one {name}, but its op 0 has "
                        f"{sorted(first)} and its op {index} {sorted(own)}."
                    )

    def inner_ops(self) -> list[Any]:
        """Return a new list of the inner ops."""
        return list(self.ops)

    def resolve_settings(self, changed: Sequence[str] = ()) -> None:
        """Apply changes of the op or of its inner ops; see `Op.resolve_settings`."""
        self._put_names(self.inputs, self.outputs, self.mode, self.ds_id)
        own = self.library_class()
        made: Any = self._anew(own)
        # Keys that a program has assigned stay until those of the inner ops change.
        if made._limits() != self._derived:
            self._put_names(*made._limits())
        self.in_list, self.out_list = made.in_list, made.out_list
        self._take_over(made, (*own.resolved_from, "ops", "extra_inputs", "repeat_inputs"))

    def _limits(self) -> tuple[list[str], list[str], set[str], set[str]]:
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
