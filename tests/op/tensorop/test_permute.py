"""Axes in another order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastnet.op.tensorop import Permute


@pytest.mark.parametrize("order", [(2, 0, 1), (0, -1, 1)])
def test_values(order: tuple[int, ...]) -> None:
    given = torch.randn(2, 3, 4)
    (found,) = Permute(["x"], ["y"], permutation=order).forward([given], {})
    assert torch.equal(found, given.permute(order))


@pytest.mark.parametrize("built", [True, False])
def test_a_bare_key_is_a_bare_value(built: bool) -> None:
    op = Permute("x", "y", permutation=(1, 0))
    if built:
        op.build("torch", torch.device("cpu"))
    given = torch.randn(2, 3)
    assert torch.equal(op.forward(given, {}), given.T)
    both = Permute(["x", "z"], ["y", "w"], permutation=(1, 0)).forward([given, -given], {})
    assert all(map(torch.equal, both, (given.T, -given.T)))


@pytest.mark.tf
@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("order", [(2, 0, 1), (0, -1, 1)])
def test_gradients_in_tensorflow(order: tuple[int, ...], eager: bool) -> None:
    tf = pytest.importorskip("tensorflow")
    op = Permute("x", "y", permutation=order)
    op.build("tf")
    values = np.random.default_rng(0).normal(size=(2, 3, 4))
    weights = np.random.default_rng(1).normal(size=values.transpose(order).shape)

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = op.forward(x, {})
            total = tf.reduce_sum(found * weights)
        return found, tape.gradient(total, x)

    run = (
        step
        if eager
        else tf.function(step, input_signature=[tf.TensorSpec([None, 3, 4], "double")])
    )
    found, gradient = run(tf.constant(values))
    np.testing.assert_array_equal(found, values.transpose(order))
    np.testing.assert_array_equal(np.transpose(gradient, order), weights)
