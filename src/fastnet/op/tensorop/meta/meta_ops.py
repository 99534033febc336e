"""Ops that run other tensor ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fastnet.errors import add_note, describe_op
from fastnet.op.meta.fuse import FuseOps
from fastnet.op.meta.meta_op import MetaOp
from fastnet.op.meta.one_of import OneOfOps
from fastnet.op.meta.repeat import RepeatOp
from fastnet.op.meta.sometimes import SometimesOp
from fastnet.op.op import (
    bind_forward,
    get_inputs_by_op,
    is_delete,
    is_overridden,
    takes_gradients,
    write_outputs_by_op,
)
from fastnet.op.tensorop.tensorop import TensorOp
from fastnet.types import Forward, Keys, Model, State, is_tensor_op

if TYPE_CHECKING:
    import torch

__all__ = ["Fuse", "OneOf", "Repeat", "Sometimes", "TensorMetaOp", "forward_of"]


class TensorMetaOp(MetaOp, TensorOp):
    """An op that runs other tensor ops."""

    calls_user_code = True
    kind = "TensorOp"

    def __init__(self, ops: Sequence[Any], inputs: Keys, outputs: Iterable[str]) -> None:
        super().__init__(ops, inputs, outputs)
        self.retain_graph = False
        # What `make_run` returned for a built op, by `retain_graph`.
        self._runs: dict[bool, Forward] = {}

    def __getstate__(self) -> dict[str, Any]:
        # A copy must run its own ops.
        return {**super().__getstate__(), "_runs": {}}

    @classmethod
    def check_op(cls, op: Any, index: int) -> bool:
        """Return whether an op is a tensor op."""
        return is_tensor_op(op)

    def build(self, framework: str, device: torch.device | None = None) -> None:
        """Build the inner ops; see `TensorOp.build`."""
        super().build(framework, device)
        self._runs = {}
        for op in self.ops:
            if hasattr(op, "build"):
                op.build(framework, device)

    def get_fe_models(self) -> set[Model]:
        """Return the models that the inner ops hold."""
        return self._union("get_fe_models")

    def get_fe_loss_keys(self) -> set[str]:
        """Return the keys of the losses that the inner ops minimize."""
        return self._union("get_fe_loss_keys")

    def _union(self, method: str) -> set[Any]:
        return set().union(*[getattr(op, method)() for op in self.ops if hasattr(op, method)])

    def fe_retain_graph(self, retain: bool | None = None) -> bool | None:
        """Get or set whether the last inner op that takes gradients retains the graph."""
        if not any(map(takes_gradients, self.ops)):
            return None
        if retain is not None:
            self.retain_graph = retain
        return self.retain_graph

    def abandon(self) -> None:
        """Let the inner ops discard the state of a failed step."""
        for op in self.ops:
            if hasattr(op, "abandon"):
                op.abandon()

    def bind(self, defer: bool, retain_graph: bool) -> Forward | None:
        """Return the function to call instead of `forward`, or None if that is overridden.

        The network decides `retain_graph`; the op keeps its own setting.
        """
        return None if is_overridden(self, _FORWARD) else self._run(retain_graph)

    def forward(self, data: Any, state: State) -> Any:
        """Run the inner ops."""
        return self._run(self.retain_graph)(data, state)

    def _run(self, retain_graph: bool) -> Forward:
        if self._framework is None:
            # The settings of an op that was not built take effect in each call.
            return self.make_run(retain_graph)
        run = self._runs.get(retain_graph)
        if run is None:
            run = self._runs[retain_graph] = self.make_run(retain_graph)
        return run

    def chain(
        self,
        inputs: Sequence[str],
        outputs: Sequence[str],
        option: bool,
        times: int = 1,
        again: bool = False,
    ) -> Forward:
        """Return the function that runs all inner ops in order; see `MetaOp.chain`."""
        ops = self.ops * times
        takers = [index for index, op in enumerate(ops) if takes_gradients(op)]
        # Only the last op that takes gradients may free the graph.
        last = None if again or option or not takers else takers[-1]
        steps = tuple(
            _step_of(op, index % len(self.ops), index != last) for index, op in enumerate(ops)
        )
        only = inputs[0] if len(inputs) == 1 else None

        # One frame for all ops, because TensorFlow records the Python stack with each operation.
        def run(data: Any, state: State) -> list[Any]:
            store = dict(zip(inputs, data, strict=True)) if only is None else {only: data[0]}
            try:
                for forward, source, target, in_list, inside in steps:
                    if source in store:
                        data = store[source]
                        store[target] = forward([data] if in_list else data, state)
                    else:
                        op, _, deleted = inside
                        data = get_inputs_by_op(op, store)
                        for key in deleted:
                            del store[key]
                        write_outputs_by_op(op, store, forward(data, state))
            except Exception as error:
                op, index, _ = inside
                add_note(error, f"It was inside of another op: {describe_op(op, index)}.")
                raise
            return [store[key] for key in outputs]

        return run

    def forward_of(self, op: Any, option: bool) -> Forward:
        """Return the forward of an inner op."""
        return forward_of(op, option)

    def choose(self, prob: float, yes: Forward, no: Forward) -> Forward:
        """Return a function that calls one of two at random."""
        if self._framework is not None:
            chosen: Forward = self.backend.chooser(prob, yes, no)
            return chosen

        def run(data: Any, state: State) -> Any:
            return self.control(data).chooser(prob, yes, no)(data, state)

        return run

    def control(self, data: Any) -> Any:
        """Return the backend, which the inputs decide if the op was not built."""
        if self._framework is not None:
            return self.backend
        first = data[0] if isinstance(data, (list, tuple)) else data
        return self._backend_of(first, "chooser")


# A program may assign another function to TensorMetaOp.forward.
_FORWARD = TensorMetaOp.forward


def forward_of(op: Any, retain_graph: bool) -> Callable[..., Any]:
    """Return an op's forward with the decision whether to retain the graph."""
    if takes_gradients(op):
        return bind_forward(op, defer=False, retain_graph=retain_graph)
    bound = op.bind(False, retain_graph) if isinstance(op, TensorMetaOp) else None
    forward: Callable[..., Any] = bound or op.forward
    return forward


def _step_of(op: Any, index: int, retain_graph: bool) -> tuple[Any, ...]:
    """Return an op's forward, its only input and output, `in_list`, and what errors need."""
    deleted = tuple(op.inputs) if is_delete(op) else ()
    inside = op, index, deleted
    forward = forward_of(op, retain_graph)
    if len(op.inputs) == len(op.outputs) == 1 and not (op.out_list or deleted):
        return forward, op.inputs[0], op.outputs[0], op.in_list, inside
    # No value has the key None, so that the op's inputs and outputs are used.
    return forward, None, None, op.in_list, inside


class Fuse(FuseOps, TensorMetaOp):
    """Run ops in order, as one op: for a scheduler, or inside of another meta op.

    The inputs are the keys that the ops read before one of them writes them, the outputs all keys
    that they write and do not delete.

    Args:
        ops: The ops, in order. They share their modes and dataset ids.

    Raises:
        ValueError: If there is no op, or the modes or dataset ids differ.
        TypeError: If something is not a tensor op.

    >>> from fastnet.op.tensorop import LambdaOp
    >>> op = Fuse([LambdaOp(lambda x: x + 1, "x", "y"), LambdaOp(lambda y: y * 2, "y", "z")])
    >>> op.inputs, op.outputs, op.forward([1], {})
    (['x'], ['y', 'z'], [2, 4])
    """


class OneOf(OneOfOps, TensorMetaOp):
    """Run one of several ops, drawn at random in each step.

    Args:
        tensor_ops: The ops. They share their inputs, outputs, modes and dataset ids.
        probs: The probability of each op, with a sum of 1. None for equal probabilities.

    Raises:
        ValueError: If there is no op.
        AssertionError: If inputs, outputs, modes or dataset ids differ, or `probs` is not one
            probability for each op.
        TypeError: If something is not a tensor op.

    >>> from fastnet.op.tensorop import LambdaOp
    >>> import torch
    >>> ops = [LambdaOp(lambda x, n=n: x + n, "x", "x") for n in (1, 2)]
    >>> OneOf(*ops, probs=[0.0, 1.0]).forward([torch.tensor(0)], {})
    tensor(2)
    """

    def __init__(self, *tensor_ops: Any, probs: Sequence[float] | None = None) -> None:
        super().__init__(*tensor_ops, probs=probs)
        if self.probs is None:
            self.probs = [1 / len(tensor_ops)] * len(tensor_ops)


class Repeat(RepeatOp, TensorMetaOp):
    """Run an op several times, or while a condition holds.

    Args:
        op: The op.
        repeat: The number of times; or a condition, with arguments named after the keys that it
            reads. It is called after each run, so that the op runs at least once.
        max_iter: The maximum number of times for a condition. None for no limit.

    Raises:
        TypeError: If `op` is not a tensor op, or `repeat` is neither an int nor a function.
        ValueError: If `repeat` or `max_iter` is less than 1, or `max_iter` is given with an int.

    >>> from fastnet.op.tensorop import LambdaOp
    >>> import torch
    >>> double = LambdaOp(lambda x: 2 * x, "x", "x")
    >>> Repeat(double, repeat=3).forward([torch.tensor(1)], {})
    [tensor(8)]
    >>> Repeat(double, repeat=lambda x: x < 100).forward([torch.tensor(1)], {})
    [tensor(128)]
    """


class Sometimes(SometimesOp, TensorMetaOp):
    """Run an op with a probability, drawn in each step.

    In other steps its outputs stay as they are, so that they must exist before the op.

    Args:
        tensor_op: The op.
        prob: The probability that it runs, from 0 to 1.

    Raises:
        TypeError: If `tensor_op` is not a tensor op.
        ValueError: If `prob` is not a probability.

    >>> from fastnet.op.tensorop import LambdaOp
    >>> import torch
    >>> op = Sometimes(LambdaOp(lambda x: x + 1, "x", "y"), prob=1.0)
    >>> op.inputs, op.forward([torch.tensor(1), torch.tensor(0)], {})
    (['x', 'y'], [tensor(2)])
    """

    def __init__(self, tensor_op: Any, prob: float = 0.5) -> None:
        super().__init__(tensor_op, prob)
