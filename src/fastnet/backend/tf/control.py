"""Choices and loops, in TensorFlow: those of a graph, where a graph is traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

__all__ = ["choose", "one_of", "repeat_while", "when"]

T = TypeVar("T")


def choose(prob: float, yes: Callable[..., T], no: Callable[..., T], *args: Any) -> T:
    """Do one of two things.

    Args:
        prob: How likely the first is; drawn from TensorFlow's generator.
        yes: The first.
        no: The second; it returns tensors of the same types.
        args: What either is called with.

    Returns:
        What the chosen one returns.
    """
    chosen: T = tf.cond(prob > tf.random.uniform(()), lambda: yes(*args), lambda: no(*args))
    return chosen


def one_of(probs: Sequence[float], branches: Sequence[Callable[[], T]]) -> T:
    """Do one of several things.

    Args:
        probs: How likely each is; drawn from TensorFlow's generator.
        branches: The things to do; all return tensors of the same types.

    Returns:
        What the chosen one returns.
    """
    place = tf.random.categorical(tf.math.log([list(map(float, probs))]), 1, dtype=tf.int32)
    chosen: T = tf.switch_case(place[0, 0], list(branches))
    return chosen


def repeat_while(
    condition: Callable[[T], Any], body: Callable[[T], T], value: T, most: int | None
) -> T:
    """Change a value as long as a condition on it holds.

    Args:
        condition: The condition.
        body: Gives the next value, whose tensors have the same types and shapes.
        value: The first value.
        most: How many times at most, or None.

    Returns:
        The last value.
    """
    (last,) = tf.while_loop(
        condition, lambda current: (body(current),), (value,), maximum_iterations=most
    )
    result: T = last
    return result


def when(condition: Any, yes: Callable[[], T], no: Callable[[], T]) -> T:
    """Do one of two things, as a condition says.

    Args:
        condition: True, False, or a tensor of one of them.
        yes: What to do if it holds.
        no: What to do else; it returns tensors of the same types.

    Returns:
        What the chosen one returns.
    """
    chosen: T = tf.cond(tf.convert_to_tensor(condition), yes, no)
    return chosen
