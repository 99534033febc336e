"""The same values in another shape."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastnet.op.tensorop import Reshape


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
