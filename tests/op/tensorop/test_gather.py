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
