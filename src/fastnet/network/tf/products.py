"""Small matrix products as loops, which XLA fuses with the operations around them.

XLA calls Eigen for each product, which takes as long as a loop over ten thousand multiplications.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import tensorflow as tf

_MAX_MULTIPLICATIONS = 16_384
# Loops over the last axes of both matrices are slow.
_MAX_OVER_LAST_AXES = 2_048
# By what is transposed: the axes to add to the matrices, and the axis to sum over.
_AXES = {(False, False): (2, 0, 1), (True, False): (2, 1, 0), (False, True): (1, 0, 2)}


def loop_for(graph: Any, node: Any) -> tuple[Hashable, Callable[[], Any]] | None:
    """Return the maker of the loop that replaces a node, if the node is a small product.

    Args:
        graph: The graph of the node.
        node: The definition of the node.

    Returns:
        A key that is equal for equal functions, and a function that makes it; or None.
    """
    if node.op != "MatMul":
        return None
    transposed = node.attr["transpose_a"].b, node.attr["transpose_b"].b
    if transposed not in _AXES:
        return None
    if not _is_small(graph.get_operation_by_name(node.name), transposed):
        return None
    return transposed, partial(_loop, *_AXES[transposed])


def _is_small(product: tf.Operation, transposed: tuple[bool, bool]) -> bool:
    left, right = product.inputs
    if left.dtype != tf.float32 or not (left.shape + right.shape).is_fully_defined():
        return False
    count: int = left.shape.num_elements() * right.shape[0 if transposed[1] else 1]
    return 0 < count <= (_MAX_OVER_LAST_AXES if transposed[1] else _MAX_MULTIPLICATIONS)


def _loop(left_axis: int, right_axis: int, sum_axis: int) -> Any:
    def multiply(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
        products = tf.expand_dims(left, left_axis) * tf.expand_dims(right, right_axis)
        return tf.reduce_sum(products, sum_axis)

    matrix = tf.TensorSpec((None, None))
    return tf.function(multiply, autograph=False).get_concrete_function(matrix, matrix)
