"""Binding of UpdateOps: when they step, what runs after them, and what runs at exit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fastnet._execute import DEFERRED, UNDO, clean_up, run_deferred
from fastnet.backend.dispatch import model_framework
from fastnet.backend.model_metadata import name_of
from fastnet.backend.update import SHARED_STEP_SETTINGS
from fastnet.errors import describe_op
from fastnet.op.meta_op import FuseOps, RepeatOp
from fastnet.op.op import inner_ops_of, with_inner_ops
from fastnet.op.tensorop.foreign_op import as_tensor_op, bind_forward
from fastnet.op.tensorop.meta.meta_op import TensorMetaOp, forward_of
from fastnet.op.tensorop.model.following import FollowsUpdates
from fastnet.op.tensorop.model.update import UpdateOp
from fastnet.types import Forward, State


def find_first_deferred(ops: Sequence[Any], defers_last_updates: bool) -> int:
    """Return the index of the first of the ops that end the list and are deferred in any case.

    These updates compute all gradients before any optimizer steps, because an in-place change of a
    model would invalidate the graph of the next loss.
    """
    first = len(ops)
    while defers_last_updates and first and as_tensor_op(ops[first - 1]).is_deferrable:
        first -= 1
    return first


def bind_forwards(
    ops: Sequence[Any],
    forwards: list[Forward],
    gradient_indices: Sequence[int],
    first_deferred: int,
) -> list[Callable[[], None]]:
    """Bind the forwards of ops whose settings depend on the network, in their places in a list.

    Meta ops prepare what is the same in each step. Updates learn whether their steps are deferred,
    whether a later op differentiates a graph, which may be theirs, and what follows them.

    Returns:
        The functions to call when the network is left without an error.
    """
    for index, op in enumerate(ops):
        if inner_ops := inner_ops_of(op):
            _check_no_follower_in(op, index, inner_ops)
        if isinstance(op, TensorMetaOp):
            forwards[index] = forward_of(op, retain_graph=False)
    _check_updates(ops, gradient_indices, first_deferred)
    followers = _followers_of(ops, gradient_indices)
    graph_indices = (index for index in gradient_indices if as_tensor_op(ops[index]).needs_graph)
    last = max(graph_indices, default=-1)
    for index in {*gradient_indices, *range(first_deferred, len(ops))}:
        op = ops[index]
        defer, retain = index >= first_deferred, index < last
        if not isinstance(op, UpdateOp) or id(op.model) not in followers:
            forwards[index] = bind_forward(op, defer, retain)
            continue
        bound = op.bind(defer, retain, followers[id(op.model)])
        if bound is None:
            raise ValueError(
                f"{describe_op(op, index)} overrides forward, so nothing can follow its steps. "
                "Remove the ops that follow it, or do not override forward."
            )
        forwards[index] = bound
    exit_calls = [
        _end_windows_call(ops, gradient_indices, first_deferred, followers),
        *(op.exit_call() for op in ops if isinstance(op, FollowsUpdates)),
    ]
    return [call for call in exit_calls if call is not None]


def _end_windows_call(
    ops: Sequence[Any],
    gradient_indices: Sequence[int],
    first_deferred: int,
    followers: Mapping[int, Sequence[Any]],
) -> Callable[[], None] | None:
    """Return the function that flushes or drops the incomplete windows of updates, or None."""
    # As in a step: what is deferred, and what is to be undone after an error.
    deferred: dict[str, list[Callable[[], None]]] = {}
    undo: dict[Any, Callable[[], None]] = {}
    state: State = {DEFERRED: deferred, UNDO: undo}
    flushes, drops, clears = [], [], []
    for index in gradient_indices:
        for update in update_ops_in([ops[index]]):
            following = followers.get(id(update.model), ())
            flush = update.flush_call(following, state, _is_deferred(update, index, first_deferred))
            if flush is not None:
                flushes.append(flush)
                clears.append(update.updater().clear_gradients)
            if (drop := update.drop_call()) is not None:
                drops.append(drop)

    def end() -> None:
        """Take deferred steps after all gradients are averaged."""
        try:
            for flush in flushes:
                flush()
            run_deferred(deferred)
            # After an error this is not reached, so windows are carried over.
            for drop in drops:
                drop()
        except BaseException as error:
            clean_up(state, clears, error)
            raise
        undo.clear()

    return end if flushes or drops else None


def _is_deferred(update: UpdateOp, index: int, first_deferred: int) -> bool:
    """Return whether the step of an update in the op at an index is deferred."""
    return update.defer or index >= first_deferred


def update_ops_in(ops: Iterable[Any]) -> Iterator[UpdateOp]:
    """Return the UpdateOps among ops, and inside of them."""
    return (op for op in with_inner_ops(ops) if isinstance(op, UpdateOp))


def _updates_in(op: Any, is_conditional: bool = False) -> Iterator[tuple[UpdateOp, bool]]:
    """Yield the UpdateOps among an op and those inside of it, and whether a step may skip each."""
    if isinstance(op, UpdateOp):
        yield op, is_conditional
    may_skip = is_conditional or not isinstance(op, (FuseOps, RepeatOp))
    for inner in inner_ops_of(op):
        yield from _updates_in(inner, may_skip)


def _followers_of(ops: Sequence[Any], gradient_indices: Sequence[int]) -> dict[int, list[Any]]:
    """Return the functions that are called after the updates of models, by the models' ids."""
    followers: dict[int, list[Any]] = {}
    for index, op in enumerate(ops):
        if not isinstance(op, FollowsUpdates):
            continue
        model = op.model
        updates = [
            (holder, update)
            for holder in gradient_indices
            for update in update_ops_in([ops[holder]])
            if update.model is model
        ]
        if not updates:
            _check_not_updated_with_another(op, index, [ops[holder] for holder in gradient_indices])
        if not any(update is ops[holder] for holder, update in updates):
            raise ValueError(
                f"{describe_op(op, index)} follows the updates of model '{name_of(model)}', but no "
                "active op in the network's list of ops updates it. Put an UpdateOp of the model, "
                "with the same modes, into this list."
            )
        for holder, update in updates:
            if update is not ops[holder]:
                raise ValueError(
                    f"{describe_op(op, index)} follows the updates of model '{name_of(model)}', "
                    f"but cannot follow those of the UpdateOp inside of "
                    f"{describe_op(ops[holder], holder)}. Put this UpdateOp into the network's "
                    f"list of ops, or remove the {type(op).__name__}."
                )
        followers.setdefault(id(model), []).append(op.follow)
    return followers


def _check_not_updated_with_another(op: Any, index: int, holders: Sequence[Any]) -> None:
    """Raise a ValueError if the optimizer of another model updates the model of a follower."""
    weights = set(map(id, model_framework(op.model).trainable_parameters(op.model)))
    for update in update_ops_in(holders):
        if weights and weights.issubset(map(id, update.updater().trained_parameters())):
            raise ValueError(
                f"{describe_op(op, index)} follows the updates of model '{name_of(op.model)}', but "
                f"its weights are updated with those of model '{name_of(update.model)}', by the "
                "optimizer of that model. Give each model an optimizer and an UpdateOp of its own."
            )


def _check_no_follower_in(op: Any, index: int, inner_ops: Sequence[Any]) -> None:
    """Raise a ValueError for an op inside of another that would never follow an update."""
    for inner in with_inner_ops(inner_ops):
        if isinstance(inner, FollowsUpdates):
            raise ValueError(
                f"{describe_op(op, index)} holds {type(inner).__name__} of model "
                f"'{name_of(inner.model)}', which follows the model's updates only if it is in the "
                "network's list of ops. Put it there."
            )


def _check_updates(
    ops: Sequence[Any], gradient_indices: Sequence[int], first_deferred: int
) -> None:
    """Check that updates that step together agree on scales, settings and outputs."""
    # By model, the updates that may take one step together.
    shared: dict[int, list[UpdateOp]] = {}
    for index in gradient_indices:
        for update, is_conditional in _updates_in(ops[index]):
            joint_updates = shared.setdefault(id(update.model), [])
            joint_updates.append(update)
            _check_scales(update, [updates[-1] for updates in shared.values() if updates])
            if len(joint_updates) > 1 and update.updater().joins_deferred:
                _check_same_settings(joint_updates)
            if _is_deferred(update, index, first_deferred):
                _check_deferred_outputs(update, index, ops)
            elif is_conditional or update.merge_grad > 1:
                # It may not step now, so earlier deferred updates still wait; an unconditional step
                # takes theirs, too, which ends the group.
                joint_updates.pop()
            else:
                joint_updates.clear()


def _check_scales(update: UpdateOp, pending: Iterable[UpdateOp]) -> None:
    """Check that no shared parameter gets gradients of two scales, before either is unscaled."""
    for earlier in pending:
        if update.updater().shares_scaled_gradients(earlier.updater()):
            names = [name_of(op.model) for op in (earlier, update)]
            raise ValueError(
                f"The models {names} share trainable parameters, and the update of '{names[0]}' "
                "is deferred, so the gradients of both are summed. But each optimizer has a "
                "GradScaler of its own, and the scales may differ. Build the models with "
                'mixed_precision="bf16" or False.'
            )


def _check_deferred_outputs(update: UpdateOp, index: int, ops: Sequence[Any]) -> None:
    """Check that no op reads an output of a deferred update."""
    described = describe_op(ops[index], index)
    if update is not ops[index]:
        if update.outputs and update.defer:
            raise ValueError(
                f"{described} holds an UpdateOp that reports '{update.outputs[0]}' only at the "
                "step's end, since its update is deferred. Pass defer=False to the UpdateOp, or "
                "put it into the network's list of ops."
            )
        return
    for later, reader in enumerate(ops[index + 1 :], index + 1):
        keys = [key for key in update.outputs if key in reader.inputs]
        if keys:
            raise ValueError(
                f"{describe_op(reader, later)} reads '{keys[0]}', which {described} writes only at "
                "the step's end, since its update is deferred. Pass defer=False to the UpdateOp, "
                "or read the key from the step's result."
            )


def _check_same_settings(updates: Sequence[UpdateOp]) -> None:
    """Check that deferred updates of a model share their settings, and only the last reports."""
    start = f"The UpdateOps of model '{name_of(updates[0].model)}' are deferred and take one step"
    for setting in SHARED_STEP_SETTINGS:
        values = list(dict.fromkeys(getattr(update, setting) for update in updates))
        if len(values) > 1:
            raise ValueError(
                f"{start} together, but have {setting}={values[0]} and {setting}={values[1]}. Pass "
                "the same to all of them."
            )
    early = [key for update in updates[:-1] for key in update.outputs]
    if early:
        raise ValueError(
            f"{start} together, which the last one reports, but the outputs {early} belong to an "
            "earlier one. Pass them to the last."
        )
