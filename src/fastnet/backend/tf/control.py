"""Random choices, conditions and loops; part of the graph where one is traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from fastnet.backend.tf.autograph import with_autograph
from fastnet.types import Forward, State

T = TypeVar("T")


def chooser(prob: float, yes: Forward, no: Forward) -> Forward:
    """Return a forward that runs `yes` with probability `prob`, else `no`."""

    def choose(data: Any, state: State) -> Any:
        first = tf.less(tf.random.uniform(()), prob)
        return tf.cond(first, lambda: yes(data, state), lambda: no(data, state))

    return choose


def one_of(probs: Sequence[float], branches: Sequence[Callable[[], T]]) -> T:
    """Call one of several branches, which return tensors of the same dtypes."""
    index = tf.random.categorical(tf.math.log([list(map(float, probs))]), 1, dtype=tf.int32)
    if tf.executing_eagerly():
        branch: Callable[[], T] = branches[index.numpy().item()]
        return branch()
    # AutoGraph does not convert functions that TensorFlow itself calls.
    converted = [with_autograph(branch) for branch in branches]
    chosen: T = tf.switch_case(tf.squeeze(index), converted)
    return chosen


def repeat_while(
    condition: Callable[[T], Any], body: Callable[[T], T], value: T, max_iterations: int | None
) -> T:
    """Apply a function to a value while a condition holds, at most `max_iterations` times."""
    (last,) = tf.while_loop(
        condition, lambda current: (body(current),), (value,), maximum_iterations=max_iterations
    )
    result: T = last
    return result


def when(condition: Any, yes: Callable[[], T], no: Callable[[], T]) -> T:
    """Call `yes` if the condition is true, else `no`; both return tensors of the same dtypes."""
    chosen: T = tf.cond(tf.convert_to_tensor(condition), yes, no)
    return chosen
