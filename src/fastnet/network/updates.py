"""What goes with the updates of an opening: what follows them, and what is done at its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fastnet.backend.facts import name_of
from fastnet.errors import describe_op
from fastnet.op.tensorop.model.update import UpdateOp

__all__ = [
    "Followers",
    "check_updates",
    "close_after",
    "endings_of",
    "followers_of",
    "forget_endings",
    "updates_in",
]

Followers = dict[int, list[Callable[..., None]]]
"""What follows the updates of models, by the ids of these."""


def followers_of(ops: Sequence[Any]) -> Followers:
    """Find what follows the updates of models.

    Args:
        ops: The ops in force, in order.

    Returns:
        For each model that is followed, by its id, what is called after its updates.

    Raises:
        ValueError: If a model is followed that no op of these updates.
    """
    followers: Followers = {}
    for place, op in enumerate(ops):
        follow = getattr(op, "follow", None)
        if follow is None or not hasattr(op, "followed_model"):
            continue
        model = op.followed_model
        if not any(isinstance(one, UpdateOp) and one.model is model for one in ops):
            inside = any(one.model is model for one in updates_in(ops))
            where = " but inside of another op" if inside else ""
            raise ValueError(
                f"{describe_op(op, place)} follows the updates of model '{name_of(model)}', which "
                f"no op in force updates{where}. Put an UpdateOp of the model, of the same modes, "
                "into the network's list of ops."
            )
        followers.setdefault(id(model), []).append(follow)
    return followers


def check_updates(ops: Sequence[Any], first_deferred: int) -> None:
    """Refuse updates that would not be, or would not tell, what their settings say.

    Args:
        ops: The ops in force, in order.
        first_deferred: The place from which on updates are put off until after the last op.

    Raises:
        ValueError: If there are such.
    """
    by_model: dict[int, list[tuple[UpdateOp, bool]]] = {}
    for place, op in enumerate(ops):
        for one in updates_in([op]):
            waits = one.defer or place >= first_deferred
            by_model.setdefault(id(one.model), []).append((one, waits))
            if one is not op and one.outputs and one.defer:
                raise ValueError(
                    f"{describe_op(op, place)} has an UpdateOp inside that tells "
                    f"'{one.outputs[0]}' only at the step's end, as its update is put off until "
                    "then. Make the UpdateOp with defer=False, or put it into the network's list "
                    "of ops."
                )
        if isinstance(op, UpdateOp) and op.outputs and (op.defer or place >= first_deferred):
            _refuse_early_readers(ops, place)
    for updates in by_model.values():
        if len(updates) > 1 and any(waits for _, waits in updates):
            _refuse_different([one for one, _ in updates])


def endings_of(ops: Sequence[Any], followers: Followers) -> list[Callable[[], None]]:
    """List what is to be done when an opening is left.

    Args:
        ops: The ops in force, in order.
        followers: What follows their updates.

    Returns:
        Functions, to be called in order: updates first, and then what follows them.
    """
    found = [
        one.ending(followers.get(id(one.model), ()) if one in ops else ())
        for one in updates_in(ops)
    ]
    found += [op.ending() for op in ops if hasattr(op, "followed_model") and hasattr(op, "ending")]
    return [ending for ending in found if ending is not None]


def close_after(
    endings: Sequence[Callable[[], None]], close: Callable[[], None]
) -> Callable[[], None]:
    """Return what ends an opening, and first does what is to be done at its end.

    Args:
        endings: What is to be done, unless the opening ends by an error.
        close: What ends it in any case.
    """
    # what the program was in the middle of handling when it opened the network
    handled = sys.exc_info()[1]

    def run() -> None:
        error = sys.exc_info()[1]
        try:
            # a generator of the program's own that opens the network and is closed is no error
            if error is None or error is handled or isinstance(error, GeneratorExit):
                for end in endings:
                    end()
        finally:
            close()

    return run


def forget_endings(opening: Any) -> None:
    """Let an opening end with nothing done at its end, as one does that is left by an error.

    Args:
        opening: The opening, or None for none.
    """
    if opening is not None:
        vars(opening.runner).pop("close", None)


def updates_in(ops: Sequence[Any]) -> Iterator[UpdateOp]:
    """Go through the updates among ops, and inside of them.

    Args:
        ops: The ops, in order.

    Yields:
        The UpdateOps.
    """
    for op in ops:
        if isinstance(op, UpdateOp):
            yield op
        elif hasattr(op, "inner_ops"):
            yield from updates_in(op.inner_ops())


def _refuse_early_readers(ops: Sequence[Any], place: int) -> None:
    op = ops[place]
    for later, reader in enumerate(ops[place + 1 :], place + 1):
        early = [key for key in op.outputs if key in reader.inputs]
        if early:
            raise ValueError(
                f"{describe_op(reader, later)} reads '{early[0]}', which {describe_op(op, place)} "
                "knows only at the step's end, as its update is put off until then. Make the "
                "UpdateOp with defer=False, or read the key from the step's result."
            )


def _refuse_different(updates: Sequence[UpdateOp]) -> None:
    name = name_of(updates[0].model)
    for setting in ("clip_norm", "clip_value"):
        given = list(dict.fromkeys(getattr(one, setting) for one in updates))
        if len(given) > 1:
            raise ValueError(
                f"The UpdateOps of model '{name}' are put off and take one step together, but "
                f"have {setting}={given[0]} and {setting}={given[1]}. Give all of them the same."
            )
    if any(one.outputs for one in updates[:-1]):
        raise ValueError(
            f"The UpdateOps of model '{name}' are put off and take one step together, of which "
            f"the last one tells, but outputs {list(updates[0].outputs)} are those of an earlier "
            "one. Give them to the last."
        )
