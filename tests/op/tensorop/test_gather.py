"""Some values of each sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastnet.op.tensorop import Gather

VALUES = torch.tensor([[0.1, 0.9], [0.8, 0.2]])


def test_an_empty_list_of_keys_is_none() -> None:
    op = Gather("x", "y", indices=[])
    assert (op.inputs, op.num_indices) == (["x"], 0)
    (found,) = op.forward([VALUES], {})
    assert torch.equal(found, VALUES.amax(1))


@pytest.mark.tf
class TestInTensorFlow:
    @pytest.mark.parametrize("eager", [True, False])
    @pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "float32"])
    def test_types_of_indices(self, dtype: str, eager: bool) -> None:
        tf = pytest.importorskip("tensorflow")
        op = Gather("x", "y", indices="i")
        op.build("tf")
        step = op.forward if eager else tf.function(op.forward)
        (found,) = step([tf.cast([1, 0], dtype), tf.constant(VALUES.numpy())], {})
        assert found.numpy().tolist() == [VALUES[0, 1], VALUES[1, 0]]

    @pytest.mark.parametrize("listed", [[], [1, 0]])
    def test_a_list_in_a_batch(self, listed: list[int]) -> None:
        tf = pytest.importorskip("tensorflow")
        op = Gather("x", "y", indices="i")
        op.build("tf")
        (found,) = op.forward([listed, tf.constant(VALUES.numpy())], {})
        np.testing.assert_allclose(found, [0.9, 0.8])
