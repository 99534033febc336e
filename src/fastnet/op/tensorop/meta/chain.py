"""Ops run one after the other, inside of another op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fastnet.errors import add_note, describe_op
from fastnet.op.op import (
    bind_forward,
    get_inputs_by_op,
    is_delete,
    takes_gradients,
    write_outputs_by_op,
)
from fastnet.op.tensorop.meta.meta_op import MetaOp
from fastnet.types import Forward, State

__all__ = ["Step", "chain", "forward_of", "step_of"]

# An op's forward; the key that it reads, the key that it writes, and whether it takes a list; the
# op, its place, and the keys that it deletes.
Step = tuple[Callable[..., Any], Any, Any, bool, tuple[Any, int, tuple[str, ...]]]


def chain(steps: Iterable[Step], inputs: Sequence[str], outputs: Sequence[str]) -> Forward:
    """Return the function that runs ops one after the other.

    Args:
        steps: What `step_of` says of each op.
        inputs: The keys of the values that they begin with.
        outputs: The keys of the values to return.

    Returns:
        A function of the values of the inputs and of the step's context, which gives the values of
        the outputs. Whatever an op raises has a note that names it.
    """
    steps = tuple(steps)
    only = inputs[0] if len(inputs) == 1 else None

    # One frame for all of them: TensorFlow records the Python stack with each op of its own.
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
            op, place, _ = inside
            add_note(error, f"It was inside of another op: {describe_op(op, place)}.")
            raise
        return [store[key] for key in outputs]

    return run


def step_of(op: Any, place: int, retain_graph: bool) -> Step:
    """Settle what `chain` has to know of an op.

    Args:
        op: The op.
        place: Its place among the ops around it, for error texts.
        retain_graph: Whether a later op takes gradients of the same graph.

    Returns:
        The step.
    """
    deleted = tuple(op.inputs) if is_delete(op) else ()
    inside = op, place, deleted
    forward = forward_of(op, retain_graph)
    if len(op.inputs) == len(op.outputs) == 1 and not (op.out_list or deleted):
        return forward, op.inputs[0], op.outputs[0], op.in_list, inside
    # no value is under None, so that it goes by the op's own keys
    return forward, None, None, op.in_list, inside


def forward_of(op: Any, retain_graph: bool) -> Callable[..., Any]:
    """Return an op's forward, with what is settled for it.

    Args:
        op: The op.
        retain_graph: Whether a later op takes gradients of the same graph.

    Returns:
        What to call.
    """
    if takes_gradients(op):
        return bind_forward(op, defer=False, retain_graph=retain_graph)
    bound = op.bind(False, retain_graph) if isinstance(op, MetaOp) else None
    forward: Callable[..., Any] = bound or op.forward
    return forward
