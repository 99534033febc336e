"""Matrix products as loops: the same results as in the traced function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fastnet.network.tf.xla_graph import add_operations_for_xla

pytestmark = pytest.mark.tf


def nodes_of(concrete: Any) -> list[str]:
    """Return the types of the operations of a function and of the functions that it calls."""
    definition = concrete.graph.as_graph_def()
    functions = [function.node_def for function in definition.library.function]
    return [node.op for nodes in (definition.node, *functions) for node in nodes]


@pytest.mark.parametrize(
    ("size", "is_small", "transposed"),
    [
        (4, True, (True, False)),
        (4, True, (False, True)),
        (4, True, (True, True)),
        (64, False, (False, False)),
    ],
)
def test_products(size: int, is_small: bool, transposed: tuple[bool, bool]) -> None:
    source = np.random.default_rng(0)
    shapes = [(size, size + 1), (size + 1, size + 2)]
    arrays = [source.standard_normal(shape).astype("float32") for shape in shapes]
    tensors = [
        tf.constant(one.T if flip else one) for one, flip in zip(arrays, transposed, strict=True)
    ]
    weight = tf.Variable(2.0)

    def step(one: Any, other: Any) -> Any:
        product = tf.matmul(one, other, transpose_a=transposed[0], transpose_b=transposed[1])
        return product * weight, tf.reduce_sum(product)

    specs = [tf.TensorSpec(one.shape) for one in tensors]
    concrete = tf.function(step).get_concrete_function(*specs)
    looped = tf.function(
        lambda *given: add_operations_for_xla(concrete, concrete.outputs, list(given)),
        autograph=False,
    ).get_concrete_function(*specs)
    has_loop = is_small and transposed != (True, True)
    assert ("MatMul" in nodes_of(looped)) is not has_loop
    product, total = looped(*tensors)
    np.testing.assert_allclose(product, 2 * arrays[0] @ arrays[1], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(total, (arrays[0] @ arrays[1]).sum(), rtol=1e-3)
