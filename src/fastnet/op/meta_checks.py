"""What ops around other ops, be it of tensors or of arrays, ask of their settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence, Sized
from typing import Any

from fastnet.errors import shorten
from fastnet.op.checks import is_int, is_number, parse_probabilities

__all__ = [
    "parse_op_probabilities",
    "parse_repeat",
    "require_ops",
    "require_prob",
    "require_same_keys",
]


def require_ops(
    owner: str,
    ops: Sequence[Any],
    kind: str,
    fits: Callable[[Any], bool],
    mismatch: type[Exception],
) -> None:
    """Refuse ops that cannot run inside of another op.

    Args:
        owner: The class of the op around them.
        ops: The ops.
        kind: The class that they are to be of.
        fits: Tells whether something is of that class.
        mismatch: What is raised if they differ in their modes or dataset ids.

    Raises:
        ValueError: If there is no op.
        TypeError: If something is no such op.
    """
    if not ops:
        raise ValueError(f"{owner} runs other ops, but got none.")
    for place, op in enumerate(ops):
        if not fits(op):
            got = f"the class {op.__name__}" if isinstance(op, type) else type(op).__name__
            raise TypeError(
                f"{owner} runs {kind}s, but its op {place} is {got}. Pass an instance of a {kind}."
            )
        for name in ("mode", "ds_id"):
            first, own = getattr(ops[0], name), getattr(op, name)
            if own != first:
                raise mismatch(
                    f"The ops of {owner} share one {name}, but its op 0 has {sorted(first)} and "
                    f"its op {place} {sorted(own)}."
                )


def require_same_keys(ops: Sequence[Any]) -> None:
    """Refuse ops that cannot stand for each other in OneOf.

    Args:
        ops: The ops.

    Raises:
        AssertionError: If they differ in their inputs or outputs.
    """
    first = ops[0]
    for place, op in enumerate(ops):
        for name in ("inputs", "outputs", "in_list", "out_list"):
            if getattr(op, name) != getattr(first, name):
                raise AssertionError(
                    f"The ops of OneOf share their {name}, but its op 0 has "
                    f"{getattr(first, name)} and its op {place} {getattr(op, name)}."
                )


def parse_op_probabilities(probs: Any, count: int) -> list[float] | None:
    """Read the probabilities of OneOf's ops.

    Args:
        probs: The setting.
        count: How many ops there are.

    Returns:
        The probabilities, or None if the ops are all alike.

    Raises:
        AssertionError: If they are not one for each op, of at least 0, adding up to 1.
    """
    if probs is None or (isinstance(probs, Sized) and len(probs) == 0):
        return None
    shares = parse_probabilities(probs, count)
    if shares is None:
        raise AssertionError(
            f"OneOf's probs are one probability for each of its {count} ops, adding up to 1, not "
            f"{shorten(probs)}."
        )
    return shares


def parse_repeat(repeat: Any, max_iter: Any) -> list[str]:
    """Read how often Repeat runs its op.

    Args:
        repeat: How many times, or a condition.
        max_iter: How many times at most, or None.

    Returns:
        The keys that the condition reads.

    Raises:
        TypeError: If `repeat` is neither an int nor a function that names its arguments.
        ValueError: If a number is less than 1, or `max_iter` is given with a number.
    """
    if max_iter is not None and (not is_int(max_iter) or max_iter < 1):
        raise ValueError(f"Repeat's max_iter is at least 1, not {shorten(max_iter)}.")
    if isinstance(repeat, int):
        if repeat < 1:
            raise ValueError(f"Repeat runs its op at least once, but repeat is {shorten(repeat)}.")
        if max_iter is not None:
            raise ValueError(
                f"Repeat runs its op {repeat} times, so that max_iter={max_iter} has no effect. "
                "Leave it out."
            )
        return []
    if not callable(repeat):
        raise TypeError(
            f"Repeat's repeat is a number or a function, not {shorten(repeat)} of type "
            f"{type(repeat).__name__}."
        )
    try:
        return list(inspect.signature(repeat).parameters)
    except ValueError as error:
        raise TypeError(
            f"Repeat's repeat is a function whose arguments are called like the keys that it "
            f"reads, but {shorten(repeat)} does not tell what its own are called. Put a lambda "
            "around it."
        ) from error


def require_prob(prob: Any) -> None:
    """Refuse what is no probability of Sometimes.

    Args:
        prob: The setting.

    Raises:
        ValueError: If it is no number from 0 to 1.
    """
    if not is_number(prob) or not 0 <= prob <= 1:
        raise ValueError(f"Sometimes has a probability from 0 to 1, not {shorten(prob)}.")
