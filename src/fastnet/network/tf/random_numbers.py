"""Random numbers that compiled steps draw as graphs do.

XLA generates the same random bits from a seed as a graph, but makes other floating-point numbers of
them. Operations of the functions here make the numbers of the graph in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import tensorflow as tf

# The bits of a mantissa, and those of 1.0.
_BITS = {
    tf.float32: (0x7FFFFF, 0x3F800000),
    tf.float16: (0x3FF, 0x3C00),
    tf.bfloat16: (0x7F, 0x3F80),
}
# These draw random numbers; XLA does so from the same bits, of which it makes the same integers.
_DRAWS = ("StatelessMultinomial", "StatelessRandom", "StatelessTruncatedNormal")
_INTEGERS = ("StatelessRandomUniformFullInt", "StatelessRandomUniformInt")
_KEYS = "StatelessRandomGet"


def nodes_with_other_random_numbers(definition: Any) -> Iterator[Any]:
    """Yield the nodes of a graph that draw other random numbers if XLA compiles them."""
    for node in definition.node:
        if _draws_floats(node.op) and function_drawing(node) is None:
            yield node
    for function in definition.library.function:
        yield from (node for node in function.node_def if _draws_floats(node.op))


def function_drawing(node: Any) -> tuple[Hashable, Callable[[], Any]] | None:
    """Return the key and the maker of a function that replaces a node; None if there is none.

    The function draws the random numbers of a graph, where XLA would draw others for the node.
    Equal functions have equal keys.
    """
    draw = {"StatelessRandomUniformV2": _uniform, "StatelessRandomNormalV2": _normal}.get(node.op)
    if draw is None:
        return None
    dtype = tf.dtypes.as_dtype(node.attr["dtype"].type)
    if dtype not in _BITS:
        return None

    def make() -> Any:
        specs = [
            tf.TensorSpec((None,), tf.dtypes.as_dtype(node.attr["Tshape"].type)),
            tf.TensorSpec((1,), tf.uint64),
            tf.TensorSpec((None,), tf.uint64),
            tf.TensorSpec((), tf.int32),
        ]
        function = tf.function(lambda *inputs: draw(dtype, *inputs), autograph=False)
        return function.get_concrete_function(*specs)

    key = node.op, node.attr["dtype"].type, node.attr["Tshape"].type
    return key, make


def _draws_floats(op: str) -> bool:
    return op.startswith(_DRAWS) and not op.startswith((*_INTEGERS, _KEYS))


def _random_bits(shape: Any, key: Any, counter: Any, alg: Any) -> Any:
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=shape, key=key, counter=counter, alg=alg, dtype=tf.uint32
    )


def _to_uniform(dtype: Any, bits: Any) -> Any:
    """Return numbers in [0, 1) with random bits as mantissas."""
    mantissa_bits, bits_of_one = _BITS[dtype]
    bits = tf.bitwise.bitwise_and(bits, tf.constant(mantissa_bits, tf.uint32))
    bits = tf.bitwise.bitwise_or(bits, tf.constant(bits_of_one, tf.uint32))
    if dtype.size == 2:
        bits = tf.cast(bits, tf.uint16)
    return tf.bitcast(bits, dtype) - tf.constant(1, dtype)


def _uniform(dtype: Any, shape: Any, *source: Any) -> Any:
    return _to_uniform(dtype, _random_bits(shape, *source))


def _normal(dtype: Any, shape: Any, *source: Any) -> Any:
    """Transform pairs of uniform numbers into pairs of normal ones (Box-Muller)."""
    size = tf.reduce_prod(shape)
    bits = _random_bits(tf.stack([(size + 1) // 2, 2]), *source)
    uniform = _to_uniform(tf.float32, bits)
    radius = tf.sqrt(-2.0 * tf.math.log(tf.maximum(uniform[:, 0], 1e-7)))
    angle = 2.0 * math.pi * uniform[:, 1]
    pairs = tf.stack([tf.sin(angle) * radius, tf.cos(angle) * radius], axis=1)
    return tf.cast(tf.reshape(tf.reshape(pairs, [-1])[:size], shape), dtype)
