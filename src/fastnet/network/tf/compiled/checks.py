"""What tells, of the values in a step, whether XLA runs an operation to the same end as a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

__all__ = ["Check", "check_for"]


class Check(NamedTuple):
    """A check of the values that an operation is given.

    Attributes:
        inputs: Which of its inputs are looked at.
        holds: Given these, returns a tensor of bools: whether all is well.
    """

    inputs: tuple[int, ...]
    holds: Callable[..., tf.Tensor]


def check_for(operation: tf.Operation, rows: int | None = None) -> Check | None:
    """Find what an operation's values are to be checked for.

    Args:
        operation: An operation of a graph, of one of the types in `WATCHED`.
        rows: Of one that reads a variable, the length of that variable's first axis.

    Returns:
        The check, or None where there is nothing to check.
    """
    made: Check | None = _MAKERS[operation.type](operation, rows)
    if made is None:
        return None
    values = [tf.get_static_value(operation.inputs[place]) for place in made.inputs]
    if any(value is None for value in values):
        return made
    # constants are looked at now
    with tf.init_scope():
        return None if bool(tf.reduce_all(made.holds(*map(tf.constant, values)))) else made


def _is_no_nan(*values: tf.Tensor) -> tf.Tensor:
    return ~tf.stack([tf.reduce_any(tf.math.is_nan(value)) for value in values])


def _without_nan(places: tuple[int, ...]) -> Callable[..., Check | None]:
    """XLA's maximum of a NaN and a number is at times the number."""

    def make(operation: tf.Operation, rows: int | None) -> Check | None:
        if not operation.inputs[0].dtype.is_floating:
            return None
        # of constants none is NaN in a program that works
        asked = [place for place in places if tf.get_static_value(operation.inputs[place]) is None]
        return Check(tuple(asked) or places, _is_no_nan)

    return make


def _divisor(operation: tf.Operation, rows: int | None) -> Check | None:
    if operation.inputs[0].dtype.is_floating or operation.inputs[0].dtype.is_complex:
        return None
    return Check((1,), lambda divisor: tf.not_equal(divisor, 0))


def _power(operation: tf.Operation, rows: int | None) -> Check | None:
    if not operation.inputs[0].dtype.is_integer:
        return None
    return Check((1,), lambda power: power >= 0)


def _cast(operation: tf.Operation, rows: int | None) -> Check | None:
    source, target = operation.inputs[0].dtype, operation.outputs[0].dtype
    if not source.is_floating or not target.is_integer:
        return None
    # the greatest integers have no float of their own, so the bound is the power of 2 above
    least, bound = float(target.min), 2.0 ** (target.size * 8 - (0 if target.is_unsigned else 1))

    def holds(value: tf.Tensor) -> tf.Tensor:
        wide = tf.cast(value, tf.float64)
        return (wide >= least) & (wide < bound)

    return Check((0,), holds)


def _gather(operation: tf.Operation, rows: int | None) -> Check | None:
    axis = tf.get_static_value(operation.inputs[2])
    shape = operation.inputs[0].shape
    length = None if axis is None or shape.rank is None else shape[int(axis)]
    if length is not None:
        return Check((1,), lambda index: _is_within(index, length))
    return Check((1, 0, 2), lambda index, values, axis: _is_within(index, tf.shape(values)[axis]))


def _gather_rows(operation: tf.Operation, rows: int | None) -> Check | None:
    return Check((1,), lambda index: _is_within(index, rows or 0))


def _labels(operation: tf.Operation, rows: int | None) -> Check | None:
    return Check((0, 1), lambda scores, label: _is_within(label, tf.shape(scores)[-1]))


def _segments(operation: tf.Operation, rows: int | None) -> Check | None:
    return Check((1, 2), lambda segment, count: segment < tf.cast(count, segment.dtype))


def _is_within(index: tf.Tensor, length: Any) -> tf.Tensor:
    return (index >= 0) & (index < tf.cast(length, index.dtype))


def _bounded(operation: tf.Operation, rows: int | None) -> Check | None:
    # which of the results are NaN is another matter then
    return Check((0,), lambda scores: scores < float("inf"))


def _assertion(operation: tf.Operation, rows: int | None) -> Check | None:
    return Check((0,), tf.identity)


def _finite(operation: tf.Operation, rows: int | None) -> Check | None:
    return Check((0,), tf.math.is_finite)


_MAKERS: dict[str, Callable[[tf.Operation, int | None], Check | None]] = {
    "Assert": _assertion,
    "Cast": _cast,
    "CheckNumerics": _finite,
    "CheckNumericsV2": _finite,
    "ClipByValue": _without_nan((0, 1, 2)),
    **dict.fromkeys(
        ("Div", "FloorDiv", "FloorMod", "Mod", "RealDiv", "TruncateDiv", "TruncateMod"), _divisor
    ),
    "GatherV2": _gather,
    **dict.fromkeys(("ArgMax", "ArgMin", "Erf", "Max", "Min", "Relu6"), _without_nan((0,))),
    **dict.fromkeys(
        ("EluGrad", "Maximum", "Minimum", "Relu6Grad", "SeluGrad"), _without_nan((0, 1))
    ),
    "Pow": _power,
    "ResourceGather": _gather_rows,
    "Softmax": _bounded,
    "SparseSoftmaxCrossEntropyWithLogits": _labels,
    "UnsortedSegmentSum": _segments,
}
