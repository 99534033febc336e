"""Small products of matrices as loops, of which XLA makes one with what is around them.

XLA calls Eigen for a product, which takes half a microsecond to a whole one, as long as a loop over
some 16,000 multiplications; over the last axes of both matrices, where a loop is slow, over 2,000.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["as_loop"]

_MOST = 16_384
_MOST_OVER_LAST_AXES = 2_048
# by which is transposed: the axes that the matrices lack, and the one that is summed over
_AXES = {(False, False): (2, 0, 1), (True, False): (2, 1, 0), (False, True): (1, 0, 2)}


def as_loop(node: Any, operation: tf.Operation) -> list[Any] | None:
    """Make a product a sum of products of numbers.

    Args:
        node: The definition of the product, with what it waits for.
        operation: The product.

    Returns:
        The definitions of the nodes that take its place; None where XLA is to have the product.
    """
    one, other = operation.inputs
    transposed = node.attr["transpose_a"].b, node.attr["transpose_b"].b
    known = one.shape.is_fully_defined() and other.shape.is_fully_defined()
    if not known or one.dtype not in (tf.float32, tf.float64) or transposed not in _AXES:
        return None
    most = _MOST_OVER_LAST_AXES if transposed[1] else _MOST
    if operation.outputs[0].shape.num_elements() * one.shape[0 if transposed[0] else 1] > most:
        return None
    name, dtype = node.name, one.dtype
    inputs = [each for each in node.input if not each.startswith("^")]
    waits = [each for each in node.input if each.startswith("^")]
    *lacking, summed = _AXES[transposed]
    nodes = []
    for side, source, axis in zip(("left", "right"), inputs, lacking, strict=True):
        nodes.append(_axis(f"{name}/{side}_axis", axis))
        types = {"T": dtype, "Tdim": tf.int32}
        nodes.append(_node("ExpandDims", f"{name}/{side}", source, nodes[-1].name, **types))
    product = _node("Mul", f"{name}/product", f"{name}/left", f"{name}/right", *waits, T=dtype)
    total = _node("Sum", name, product.name, f"{name}/axis", T=dtype, Tidx=tf.int32)
    return [*nodes, product, _axis(f"{name}/axis", summed), total]


def _axis(name: str, axis: int) -> Any:
    node = _node("Const", name, dtype=tf.int32)
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(axis, tf.int32))
    return node


def _node(op: str, name: str, *inputs: str, **types: tf.DType) -> Any:
    node = tf.compat.v1.NodeDef(op=op, name=name, input=inputs)
    for key, dtype in types.items():
        node.attr[key].type = dtype.as_datatype_enum
    return node
