"""The tensor functions and conversions, of TensorFlow values, against numpy."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet.backend as backend

pytestmark = pytest.mark.tf

ARRAY = np.arange(24, dtype="float32").reshape(2, 3, 4)


class TestFunctions:
    def test_squeeze_of_a_longer_axis(self) -> None:
        with pytest.raises(tf.errors.InvalidArgumentError, match="squeeze"):
            backend.squeeze(tf.constant(ARRAY), axis=1)

    def test_get_shape_in_a_graph_of_any_batch_size(self) -> None:
        """As in FastEstimator, where it gives a tensor: good for reshaping."""

        @tf.function(input_signature=[tf.TensorSpec((None, 3, 4))])
        def flatten(x: Any) -> Any:
            batch, *rest = backend.get_shape(x)
            assert rest == [3, 4]
            return tf.reshape(x, [batch * 3, 4]), tf.reshape(x, backend.get_shape(x))

        for size in (2, 1):
            flat, same = flatten(tf.constant(ARRAY[:size]))
            np.testing.assert_array_equal(flat, ARRAY[:size].reshape(-1, 4))
            np.testing.assert_array_equal(same, ARRAY[:size])


Pair = collections.namedtuple("Pair", ["a", "b"])
