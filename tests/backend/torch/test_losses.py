"""Losses on torch tensors, by themselves and as FastEstimator's callers know them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from fastnet import backend
from fastnet.backend.torch import losses
from tests.op.tensorop.loss import numpy_losses

NAMES = (
    "binary_crossentropy",
    "categorical_crossentropy",
    "mean_squared_error",
    "sparse_categorical_crossentropy",
)
SIZES = st.lists(st.integers(1, 4), max_size=2)
WEIGHTS = st.none() | st.dictionaries(st.integers(0, 3), st.floats(0.1, 5.0), max_size=3)


class TestKnownValues:
    """By hand: minus the logarithms of the probabilities of what is true."""

    PRED = torch.tensor([[0.9], [0.3], [0.8], [0.1]])
    TRUE = torch.tensor([[1], [0], [1], [0]])

    def test_binary(self) -> None:
        wanted = -np.log([0.9, 0.7, 0.8, 0.9])
        for function in (backend.binary_crossentropy, losses.binary_crossentropy):
            each = function(y_pred=self.PRED, y_true=self.TRUE, average_loss=False)
            np.testing.assert_allclose(each, wanted, rtol=1e-5)
            mean = function(y_pred=self.PRED, y_true=self.TRUE)
            np.testing.assert_allclose(mean, wanted.mean(), rtol=1e-5)
            weighed = function(self.PRED, self.TRUE, False, False, {1: 2.0})
            np.testing.assert_allclose(weighed, wanted * [2, 1, 2, 1], rtol=1e-5)

    def test_categorical_and_sparse(self) -> None:
        pred = torch.tensor([[0.1, 0.8, 0.1], [0.5, 0.25, 0.25]])
        indices = torch.tensor([1, 2])
        one_hot = functional.one_hot(indices)
        wanted = -np.log([0.8, 0.25])
        for module in (backend, losses):
            for function, true in (
                (module.categorical_crossentropy, one_hot),
                (module.sparse_categorical_crossentropy, indices),
            ):
                each = function(pred, true, average_loss=False)
                np.testing.assert_allclose(each, wanted, rtol=1e-5)
                np.testing.assert_allclose(function(pred, true), wanted.mean(), rtol=1e-5)
                weighed = function(pred, true, False, False, {2: 3.0})
                np.testing.assert_allclose(weighed, wanted * [1, 3], rtol=1e-5)

    def test_mean_squared_error(self) -> None:
        true = torch.tensor([[0.0, 1.0], [3.0, 5.0]])
        pred = torch.tensor([[2.0, 1.0], [0.0, 0.0]])
        for function in (backend.mean_squared_error, losses.mean_squared_error):
            assert function(y_true=true, y_pred=pred).tolist() == [2.0, 17.0]
            assert function(true, pred, average_loss=True) == 9.5

    def test_probabilities_of_a_soft_truth(self) -> None:
        pred, true = torch.tensor([[0.25, 0.75]]), torch.tensor([[0.5, 0.5]])
        wanted = -(0.5 * np.log(0.25) + 0.5 * np.log(0.75))
        np.testing.assert_allclose(losses.categorical_crossentropy(pred, true), wanted, rtol=1e-6)


class TestRandomly:
    @settings(max_examples=60)
    @given(st.integers(1, 5), SIZES, WEIGHTS, st.booleans(), st.booleans(), st.integers(0, 9))
    def test_binary(
        self, batch: int, rest: Any, weights: Any, logits: bool, average: bool, seed: int
    ) -> None:
        source = torch.Generator().manual_seed(seed)
        pred = torch.randn(batch, *rest, generator=source)
        true = torch.randint(0, 2, (batch, *rest), generator=source)
        probability = numpy_losses.sigmoid(pred.double().numpy())
        wanted = numpy_losses.binary(probability, true.numpy(), weights)
        loss = losses.binary_crossentropy(
            pred if logits else torch.sigmoid(pred), true, logits, average, weights
        )
        np.testing.assert_allclose(loss, wanted.mean() if average else wanted, rtol=1e-4)

    @settings(max_examples=60)
    @given(
        st.integers(1, 5),
        st.integers(1, 4),
        SIZES,
        WEIGHTS,
        st.booleans(),
        st.booleans(),
        st.integers(0, 9),
    )
    def test_categorical_and_sparse(
        self,
        batch: int,
        classes: int,
        rest: Any,
        weights: Any,
        logits: bool,
        average: bool,
        seed: int,
    ) -> None:
        source = torch.Generator().manual_seed(seed)
        pred = torch.randn(batch, classes, *rest, generator=source)
        true = torch.randint(0, classes, (batch, *rest), generator=source)
        one_hot = functional.one_hot(true, classes).movedim(-1, 1)
        probability = numpy_losses.softmax(pred.double().numpy())
        if not logits:
            pred = torch.softmax(pred, dim=1)
        for function, oracle, y_true in (
            (losses.categorical_crossentropy, numpy_losses.categorical, one_hot),
            (losses.sparse_categorical_crossentropy, numpy_losses.sparse, true),
        ):
            loss = function(pred, y_true, logits, average, weights)
            wanted = oracle(probability, y_true.numpy(), weights)
            np.testing.assert_allclose(
                loss, wanted.mean() if average else wanted, rtol=1e-4, atol=1e-6
            )


class TestInputsAreLeftAlone:
    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("weights", [None, {0: 2.0}])
    def test_values(self, name: str, weights: Any) -> None:
        pred = torch.softmax(torch.randn(4, 3), dim=1)
        true = torch.tensor([0, 1, 2, 0])
        if name != "sparse_categorical_crossentropy":
            true = functional.one_hot(true).float()
        before = pred.clone(), true.clone()
        kwargs: dict[str, Any] = {} if "mean" in name else {"class_weights": weights}
        getattr(losses, name)(y_pred=pred, y_true=true, **kwargs)
        assert torch.equal(pred, before[0])
        assert torch.equal(true, before[1])


class TestDtypes:
    @pytest.mark.parametrize("kind", [torch.float32, torch.float64])
    def test_the_predictions_decide(self, kind: torch.dtype) -> None:
        pred = torch.rand(4, 3, dtype=kind)
        true = torch.tensor([0, 1, 2, 0])
        one_hot = functional.one_hot(true)
        assert losses.binary_crossentropy(pred, one_hot).dtype is kind
        assert losses.categorical_crossentropy(pred, one_hot).dtype is kind
        assert losses.sparse_categorical_crossentropy(pred, true).dtype is kind
        assert losses.mean_squared_error(one_hot.to(kind), pred).dtype is kind

    def test_half_precision(self) -> None:
        logits = torch.randn(4, 3, dtype=torch.bfloat16)
        true = torch.tensor([0, 1, 2, 0])
        loss = losses.sparse_categorical_crossentropy(logits, true, from_logits=True)
        wanted = functional.cross_entropy(logits.float(), true)
        torch.testing.assert_close(loss.float(), wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", NAMES)
def test_values_of_no_framework(name: str) -> None:
    with pytest.raises(ValueError, match=r"list.*\[0\.5\]"):
        getattr(backend, name)(y_pred=[0.5], y_true=[1.0])
