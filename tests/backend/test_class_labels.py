"""Class labels of a floating point dtype are never truncated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastnet import backend
from fastnet.op.tensorop.loss import CrossEntropy
from tests.backend.makers import FRAMEWORKS, WITH_GRADIENTS, in_graph, make, read

PROBABILITIES = np.array([[0.2, 0.3, 0.5], [0.1, 0.8, 0.1]])
WEIGHTS = {1: 2.0}


@FRAMEWORKS
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
class TestSparseCrossEntropy:
    def test_whole_numbers(self, framework: str, dtype: str, weights: Any) -> None:
        pred, labels = make(framework, PROBABILITIES), make(framework, [1.0, 2.0], dtype)
        loss = backend.sparse_categorical_crossentropy(
            pred, labels, average_loss=False, class_weights=weights
        )
        expected = -np.log([0.3, 0.1]) * ([2, 1] if weights else 1)
        np.testing.assert_allclose(read(loss), expected, rtol=1e-6)

    @pytest.mark.parametrize("average", [True, False])
    @pytest.mark.parametrize("from_logits", [True, False])
    def test_fractions(
        self, framework: str, dtype: str, weights: Any, average: bool, from_logits: bool
    ) -> None:
        pred, labels = make(framework, PROBABILITIES), make(framework, [0.9, 1.9], dtype)
        with pytest.raises(ValueError, match=rf"whole numbers.*{dtype}.*integer dtype"):
            backend.sparse_categorical_crossentropy(pred, labels, from_logits, average, weights)


@WITH_GRADIENTS
def test_along_an_axis(framework: str) -> None:
    op = CrossEntropy(("p", "t"), "loss", axis=1, ignore_index=-1)
    pred = make(framework, PROBABILITIES)
    loss = op.forward([pred, make(framework, [1.0, -1.0])], {})
    np.testing.assert_allclose(read(loss), -np.log(0.3), rtol=1e-6)
    with pytest.raises(ValueError, match="whole numbers"):
        op.forward([pred, make(framework, [1.0, 1.5])], {})


@pytest.mark.tf
def test_a_graph_rejects_fractions_as_an_index_out_of_range() -> None:
    tf = pytest.importorskip("tensorflow")
    loss = backend.sparse_categorical_crossentropy
    whole = in_graph(loss, PROBABILITIES, np.array([1.0, 2.0]))
    np.testing.assert_allclose(read(whole), -np.log([0.3, 0.1]).mean(), rtol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="label value"):
        in_graph(loss, PROBABILITIES, np.array([0.9, 1.9]))
