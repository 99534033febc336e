"""Choices and loops, in TensorFlow: those of a graph, where a graph is traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import tensorflow as tf

from fastnet.backend.tf._internals import graph_code
from fastnet.backend.tf.tensors import settled_shape
from fastnet.types import Forward, State

__all__ = ["chooser", "one_of", "repeat_while", "when"]

T = TypeVar("T")


def chooser(prob: float, yes: Forward, no: Forward) -> Forward:
    """Make one thing of two, drawn anew each time.

    Args:
        prob: How likely the first is; drawn from TensorFlow's generator.
        yes: The first.
        no: The second; it returns tensors of the same types.

    Returns:
        What takes what either takes, calls one of them, and returns what that does.
    """

    def choose(data: Any, state: State) -> Any:
        if tf.executing_eagerly():
            # what tf.cond comes to
            first = tf.less(tf.random.uniform(_no_axes()), prob)
            return yes(data, state) if first else no(data, state)
        first = tf.less(tf.random.uniform(()), prob)
        return tf.cond(first, lambda: yes(data, state), lambda: no(data, state))

    return choose


def one_of(probs: Sequence[float], branches: Sequence[Callable[[], T]]) -> T:
    """Do one of several things.

    Args:
        probs: How likely each is; drawn from TensorFlow's generator.
        branches: The things to do; all return tensors of the same types.

    Returns:
        What the chosen one returns.
    """
    place = tf.random.categorical(_logs_of(tuple(probs)), 1, dtype=tf.int32)
    if tf.executing_eagerly():
        # what tf.switch_case comes to
        branch: Callable[[], T] = branches[place.numpy().item()]
        return branch()
    # AutoGraph converts what is called where it converts, but TensorFlow calls these
    converted = [graph_code(branch) for branch in branches]
    chosen: T = tf.switch_case(tf.squeeze(place), converted)
    return chosen


@lru_cache(maxsize=1)
def _no_axes() -> tf.Tensor:
    # a shape that is no tensor is made one in each step
    return settled_shape(())


@lru_cache(maxsize=64)
def _logs_of(probs: tuple[float, ...]) -> tf.Tensor:
    with tf.init_scope():  # what is made here outlives a graph
        return tf.math.log([list(map(float, probs))])


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
