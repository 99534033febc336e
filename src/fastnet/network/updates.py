"""Binds the UpdateOps of a network: when they step, what follows them, what ends them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from fastnet.backend.facts import name_of
from fastnet.errors import describe_op
from fastnet.op.settings import bind_settings
from fastnet.op.tensorop.model.following import FollowsUpdates
from fastnet.op.tensorop.model.update import UpdateOp
from fastnet.types import Forward

__all__ = ["bind_updates", "updates_in"]

Followers = dict[int, list[Callable[..., None]]]
"""What follows the updates of models, by the ids of these."""


def bind_updates(
    ops: Sequence[Any],
    forwards: list[Forward],
    gradient_indices: Sequence[int],
    first_deferred: int,
) -> list[Callable[[], None]]:
    """Bind the forwards of ops that take gradients to what their network decides for them.

    Args:
        ops: The active ops, in order.
        forwards: Their forwards, of which some are replaced.
        gradient_indices: The indices of the ops that take gradients.
        first_deferred: The index from which on updates wait until after the last op.

    Returns:
        What to call when the network is left without an error: updates, then what follows them.

    Raises:
        ValueError: If an update would not do, or not tell, what its settings say.
    """
    taking = [ops[index] for index in gradient_indices]
    _check_updates(ops, gradient_indices, first_deferred)
    followers = _followers_of(ops, taking)
    for index in {*gradient_indices, *range(first_deferred, len(ops))}:
        op, defer = ops[index], index >= first_deferred
        retain = bool(gradient_indices) and index < gradient_indices[-1]
        following = followers.get(id(op.model)) if isinstance(op, UpdateOp) else None
        if following is None:
            forwards[index] = bind_settings(op, defer=defer, retain_graph=retain)
            continue
        bound = op.bind(defer, retain, following)
        if bound is None:
            raise ValueError(
                f"{describe_op(op, index)} overrides forward, so nothing can follow its steps. "
                "Remove the ops that follow it, or do not override forward."
            )
        forwards[index] = bound
    if not gradient_indices:
        return []
    on_exit = [
        one.ending(followers.get(id(one.model), ()) if one in taking else ())
        for one in updates_in(taking)
    ]
    for op in ops:
        if isinstance(op, FollowsUpdates) and hasattr(op, "ending"):
            on_exit.append(op.ending())
    return [call for call in on_exit if call is not None]


def updates_in(ops: Iterable[Any]) -> Iterator[UpdateOp]:
    """Yield the UpdateOps among ops, and inside of them."""
    for op in ops:
        if isinstance(op, UpdateOp):
            yield op
        elif hasattr(op, "inner_ops"):
            yield from updates_in(op.inner_ops())


def _followers_of(ops: Sequence[Any], taking: Sequence[Any]) -> Followers:
    """Return what is called after the updates of each model."""
    followers: Followers = {}
    for index, op in enumerate(ops):
        if not isinstance(op, FollowsUpdates):
            continue
        model = op.followed_model
        if not any(isinstance(one, UpdateOp) and one.model is model for one in taking):
            inside = any(one.model is model for one in updates_in(taking))
            where = "only an op inside of another op updates" if inside else "no active op updates"
            raise ValueError(
                f"{describe_op(op, index)} follows the updates of model '{name_of(model)}', which "
                f"{where}. Put an UpdateOp of the model, with the same modes, into the network's "
                "list of ops."
            )
        followers.setdefault(id(model), []).append(op.follow)
    return followers


def _check_updates(
    ops: Sequence[Any], gradient_indices: Sequence[int], first_deferred: int
) -> None:
    """Reject updates that would not do, or not report, what their settings say."""
    by_model: dict[int, list[tuple[UpdateOp, bool]]] = {}
    for index in gradient_indices:
        op = ops[index]
        for one in updates_in([op]):
            waits = one.defer or index >= first_deferred
            by_model.setdefault(id(one.model), []).append((one, waits))
            if one is not op and one.outputs and one.defer:
                raise ValueError(
                    f"{describe_op(op, index)} holds an UpdateOp that reports '{one.outputs[0]}' "
                    "only at the step's end, since its update is deferred. Pass defer=False to the "
                    "UpdateOp, or put it into the network's list of ops."
                )
        if isinstance(op, UpdateOp) and op.outputs and (op.defer or index >= first_deferred):
            _refuse_early_readers(ops, index)
    for updates in by_model.values():
        if len(updates) > 1 and any(waits for _, waits in updates):
            _refuse_different([one for one, _ in updates])


def _refuse_early_readers(ops: Sequence[Any], index: int) -> None:
    op = ops[index]
    for later, reader in enumerate(ops[index + 1 :], index + 1):
        early = [key for key in op.outputs if key in reader.inputs]
        if early:
            raise ValueError(
                f"{describe_op(reader, later)} reads '{early[0]}', which {describe_op(op, index)} "
                "writes only at the step's end, since its update is deferred. Pass defer=False to "
                "the UpdateOp, or read the key from the step's result."
            )


def _refuse_different(updates: Sequence[UpdateOp]) -> None:
    name = name_of(updates[0].model)
    for setting in ("clip_norm", "clip_value"):
        given = list(dict.fromkeys(getattr(one, setting) for one in updates))
        if len(given) > 1:
            raise ValueError(
                f"The UpdateOps of model '{name}' are deferred and take one step together, but "
                f"have {setting}={given[0]} and {setting}={given[1]}. Pass the same to all of them."
            )
    if any(one.outputs for one in updates[:-1]):
        raise ValueError(
            f"The UpdateOps of model '{name}' are deferred and take one step together, which the "
            f"last one reports, but the outputs {list(updates[0].outputs)} belong to an earlier "
            "one. Pass them to the last."
        )
