"""Joining by averaging, compared with numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fastnet.slicer import MeanUnslicer
from tests.slicer.frameworks import FRAMEWORKS, Maker, dtype_of

pytestmark = pytest.mark.fast


def mean(*slices: Any) -> Any:
    return MeanUnslicer("loss")._unslice_batch(slices, key="loss")


@FRAMEWORKS
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_floats(make: Maker, dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    arrays = [np.asarray(rng.standard_normal(shape).astype(dtype)) for _ in range(3)]
    slices = [make(array.copy()) for array in arrays]
    result = mean(*slices)
    assert (dtype_of(result), tuple(result.shape)) == (dtype, shape)
    wide = "complex128" if dtype == "complex64" else "float64"
    expected = np.mean([array.astype(wide) for array in arrays], axis=0)
    tolerance = 1e-2 if dtype == "float16" else 1e-6
    np.testing.assert_allclose(np.asarray(result), expected, rtol=tolerance, atol=tolerance / 10)
    for array, piece in zip(arrays, slices, strict=True):
        np.testing.assert_array_equal(np.asarray(piece), array)


@FRAMEWORKS
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
def test_ints_and_bools_have_a_float_mean(make: Maker, dtype: str) -> None:
    result = mean(*(make(np.array([value, 1], dtype=dtype)) for value in (1, 0)))
    assert np.asarray(result).tolist() == [0.5, 1.0]
    assert dtype_of(result).startswith("float")


@FRAMEWORKS
def test_ints_and_floats(make: Maker) -> None:
    assert np.asarray(mean(make(np.array([1])), make(np.array([2.5])))).tolist() == [1.75]


@FRAMEWORKS
def test_the_sum_starts_at_zero(make: Maker) -> None:
    # FastEstimator also averages -0.0 to 0.0.
    assert str(float(mean(make(np.array(-0.0))))) == "0.0"


def test_gradients() -> None:
    slices = [torch.tensor([1.0], requires_grad=True) for _ in range(4)]
    mean(*slices).backward()
    assert slices[0].grad is not None
    assert slices[0].grad.tolist() == [0.25]


@pytest.mark.tf
def test_gradients_in_tensorflow() -> None:
    tf = pytest.importorskip("tensorflow")
    piece = tf.constant([1.0])
    with tf.GradientTape() as tape:
        tape.watch(piece)
        loss = mean(piece, piece, tf.constant([3.0]), piece)
    assert tape.gradient(loss, piece).numpy().tolist() == [0.75]
