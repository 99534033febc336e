"""Behaviour of single tensor ops, or of one framework only."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastnet.op.tensorop import Gather, Normalize, Reshape
from fastnet.op.tensorop.gradient import GradientOp

VALUES = torch.tensor([[0.1, 0.9], [0.8, 0.2]])


def test_an_empty_list_of_keys_is_none() -> None:
    op = Gather("x", "y", indices=[])
    assert (op.inputs, op.num_indices) == (["x"], 0)
    (found,) = op.forward([VALUES], {})
    assert torch.equal(found, VALUES.amax(1))


@pytest.mark.tf
@pytest.mark.parametrize("eager", [True, False])
def test_types_of_indices_in_tensorflow(eager: bool) -> None:
    tf = pytest.importorskip("tensorflow")
    op = Gather("x", "y", indices="i")
    op.build("tf")
    values = tf.constant(VALUES.numpy())
    for dtype in ("int64", "int32", "uint8", "float32"):
        step = op.forward if eager else tf.function(op.forward)
        (found,) = step([tf.cast([1, 0], dtype), values], {})
        np.testing.assert_allclose(found, [0.9, 0.8])
    for listed in ([], [1, 0]):
        (found,) = op.forward([listed, values], {})
        np.testing.assert_allclose(found, [0.9, 0.8])


@pytest.mark.tf
@pytest.mark.parametrize("framework", ["torch", "tf"])
def test_precision_is_settled_when_a_network_is_made(framework: str) -> None:
    tf = pytest.importorskip("tensorflow")
    policies = tf.keras.mixed_precision
    op = Normalize("x", "y", mean=0.5, std=0.25, max_pixel_value=1.0)
    images = np.random.default_rng(0).uniform(size=(2, 3, 4, 5)).astype("float32")
    given = torch.from_numpy(images) if framework == "torch" else tf.constant(images)
    before = policies.global_policy()
    policies.set_global_policy("mixed_float16")
    try:
        (unbuilt,) = op.forward([given], {})
        op.build(framework, torch.device("cpu") if framework == "torch" else None)
    finally:
        policies.set_global_policy(before)
    (built,) = op.forward([given], {})
    wanted = (images - 0.5) / 0.25
    for found in (built, unbuilt):
        assert np.asarray(found).dtype == np.float16
        np.testing.assert_allclose(np.asarray(found), wanted, atol=1e-2)
    op.build(framework, torch.device("cpu") if framework == "torch" else None)
    (built,) = op.forward([given], {})
    assert np.asarray(built).dtype == np.float32
    np.testing.assert_allclose(np.asarray(built), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.tf
def test_ragged_images() -> None:
    tf = pytest.importorskip("tensorflow")
    op = Normalize("x", "y", mean=(0.5, 0.25), std=(0.5, 2.0), max_pixel_value=1.0)
    op.build("tf")
    images = np.random.default_rng(0).uniform(size=(5, 2)).astype("float32")
    (found,) = op.forward([tf.RaggedTensor.from_row_lengths(images, [2, 3])], {})
    assert found.row_lengths().numpy().tolist() == [2, 3]
    np.testing.assert_allclose(found.values, (images - [0.5, 0.25]) / [0.5, 2.0], rtol=1e-5)


@pytest.mark.tf
def test_in_a_graph_the_shape_is_known() -> None:
    tf = pytest.importorskip("tensorflow")
    op = Reshape("x", "y", shape=(-1, 2, 3))
    op.build("tf")
    seen = []

    @tf.function(input_signature=[tf.TensorSpec([None, 6])])
    def step(x):
        (found,) = op.forward([x], {})
        seen.append(found.shape.as_list())
        return found

    for count in (2, 5):
        given = torch.randn(count, 6)
        found = step(tf.constant(given.numpy()))
        np.testing.assert_array_equal(found, given.reshape(-1, 2, 3))
    assert seen == [[None, 2, 3]]


@pytest.mark.tf
def test_a_tape_of_the_program() -> None:
    tf = pytest.importorskip("tensorflow")
    op = GradientOp("loss", "z", "x")
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        loss, other = x**3, tf.constant(2.0) * 2
        (found,) = op.forward([x, loss], {"tape": tape})
        assert tape.gradient(found, x) is None  # nothing of it was recorded
        assert op.forward([x, other], {"tape": tape}) == [None]
    assert found.numpy().tolist() == [3.0, 12.0]
