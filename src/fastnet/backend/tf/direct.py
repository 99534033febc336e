"""TensorFlow's functions of tensors outside of a graph, without what stands in front of its ops.

`tf.add` looks at its arguments and asks who else may want to add them, which takes as long as to
add a small batch; `tf.reduce_sum` makes a tensor of the axes first, which takes longer. Where the
functions here are given what nearly every call has, which is a tensor in no graph, and another one
or a float, they go to the op that TensorFlow's own function comes to. With anything else they call
that function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import tensorflow as tf

from fastnet.backend.tf._internals import EAGER
from fastnet.backend.tf.tensors import rank_of

__all__ = [
    "abs",
    "add",
    "cast",
    "divide_no_nan",
    "equal",
    "exp",
    "gather",
    "multiply",
    "pow",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_sum",
    "rest_of",
    "sigmoid",
    "sign",
    "sqrt",
    "subtract",
    "where",
]

Function = Callable[..., tf.Tensor]


def _of_one(general: Function, op: Function) -> Function:
    def call(x: tf.Tensor) -> tf.Tensor:
        return op(x=x) if type(x) is EAGER else general(x)

    return call


def _of_real(general: Function, op: Function) -> Function:
    def call(x: tf.Tensor) -> tf.Tensor:
        # complex numbers have another op
        return op(x=x) if type(x) is EAGER and x.dtype.is_floating else general(x)

    return call


def _of_two(general: Function, op: Function) -> Function:
    def call(x: tf.Tensor, y: tf.Tensor | float) -> tf.Tensor:
        if type(x) is EAGER:
            kind = type(y)
            if kind is EAGER or kind is float:
                return op(x=x, y=y)
        return general(x, y)

    return call


def _over_axes(general: Function, op: Function) -> Function:
    def call(
        tensor: tf.Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False
    ) -> tf.Tensor:
        # a graph takes sums over axes that are no constants in another order
        if type(tensor) is EAGER:
            if axis is None:
                return op(input=tensor, axis=_all_axes(rank_of(tensor)), keep_dims=keepdims)
            if type(axis) is list:
                axis = tuple(axis)
            return op(input=tensor, axis=_axes(axis), keep_dims=keepdims)
        return general(tensor, axis, keepdims)

    return call


@lru_cache(maxsize=128)
def _axes(axis: int | tuple[int, ...]) -> tf.Tensor:
    with tf.init_scope():  # what is made here outlives a graph
        return tf.constant(axis, tf.int32)


@lru_cache(maxsize=128)
def _all_axes(rank: int | None) -> tf.Tensor:
    return _axes(tuple(range(rank or 0)))


abs = _of_real(tf.abs, tf.raw_ops.Abs)
add = _of_two(tf.add, tf.raw_ops.AddV2)
divide_no_nan = _of_two(tf.math.divide_no_nan, tf.raw_ops.DivNoNan)
equal = _of_two(tf.equal, tf.raw_ops.Equal)
exp = _of_one(tf.exp, tf.raw_ops.Exp)
multiply = _of_two(tf.multiply, tf.raw_ops.Mul)
pow = _of_two(tf.pow, tf.raw_ops.Pow)
reduce_max = _over_axes(tf.reduce_max, tf.raw_ops.Max)
reduce_mean = _over_axes(tf.reduce_mean, tf.raw_ops.Mean)
reduce_min = _over_axes(tf.reduce_min, tf.raw_ops.Min)
reduce_sum = _over_axes(tf.reduce_sum, tf.raw_ops.Sum)
sigmoid = _of_real(tf.sigmoid, tf.raw_ops.Sigmoid)
sign = _of_real(tf.sign, tf.raw_ops.Sign)
sqrt = _of_one(tf.sqrt, tf.raw_ops.Sqrt)
subtract = _of_two(tf.subtract, tf.raw_ops.Sub)


def cast(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Give a tensor another type."""
    if type(tensor) is EAGER:
        return tf.raw_ops.Cast(x=tensor, DstT=dtype)
    return tf.cast(tensor, dtype)


def gather(tensor: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    """Take entries of the first axis."""
    if type(tensor) is EAGER and type(indices) is EAGER:
        return tf.raw_ops.GatherV2(params=tensor, indices=indices, axis=0)
    return tf.gather(tensor, indices)


def rest_of(tensor: tf.Tensor) -> tf.Tensor:
    """Subtract each element from 1."""
    # in a graph a number in front has a type of its own
    if type(tensor) is EAGER and tf.executing_eagerly():
        return tf.raw_ops.Sub(x=1.0, y=tensor)
    return 1.0 - tensor


def where(condition: tf.Tensor, yes: tf.Tensor, no: tf.Tensor) -> tf.Tensor:
    """Take each element from one of two tensors."""
    if type(condition) is EAGER and type(yes) is EAGER and type(no) is EAGER:
        return tf.raw_ops.SelectV2(condition=condition, t=yes, e=no)
    return tf.where(condition, yes, no)
