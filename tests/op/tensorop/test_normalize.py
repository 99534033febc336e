"""Pixels centred and scaled."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastnet.op.tensorop import Normalize


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
