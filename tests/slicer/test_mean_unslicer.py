"""Joining by averaging, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fastnet.slicer import MeanUnslicer

pytestmark = pytest.mark.fast

MAKERS = pytest.mark.parametrize("make", [torch.from_numpy, np.asarray], ids=["torch", "numpy"])
Maker = Callable[[Any], Any]


def mean(*slices: Any) -> Any:
    return MeanUnslicer("loss")._unslice_batch(slices, key="loss")


@MAKERS
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_floats(make: Maker, dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(dtype) for _ in range(3)]
    slices = [make(np.asarray(array)) for array in arrays]
    result = mean(*slices)
    assert str(result.dtype).removeprefix("torch.") == dtype
    assert tuple(result.shape) == shape
    tolerance = 1e-2 if dtype == "float16" else 1e-6
    np.testing.assert_allclose(np.asarray(result), np.mean(arrays, axis=0), rtol=tolerance)
    # the slices are what they were
    for array, piece in zip(arrays, slices, strict=True):
        np.testing.assert_array_equal(np.asarray(piece), array)


@MAKERS
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
def test_ints_have_a_float_mean(make: Maker, dtype: str) -> None:
    slices = [make(np.array([value, 1], dtype=dtype)) for value in (1, 0)]
    result = mean(*slices)
    assert result.tolist() == [0.5, 1.0]
    assert "float" in str(result.dtype)


def test_small_ints_do_not_overflow() -> None:
    slices = [torch.tensor([200], dtype=torch.uint8) for _ in range(2)]
    assert mean(*slices).tolist() == [200.0]


def test_ints_and_floats() -> None:
    assert mean(torch.tensor([1]), torch.tensor([2.5])).tolist() == [1.75]


def test_the_sum_runs_from_zero() -> None:
    # so that -0.0 averages to 0.0, to the bit what FastEstimator has
    assert str(mean(torch.tensor(-0.0)).item()) == "0.0"


def test_gradients_pass() -> None:
    slices = [torch.tensor([1.0], requires_grad=True) for _ in range(4)]
    mean(*slices).backward()
    assert slices[0].grad is not None
    assert slices[0].grad.tolist() == [0.25]


def test_it_cuts_nothing() -> None:
    slicer = MeanUnslicer(["loss", "other"], mode="train", ds_id="a")
    assert slicer.slice_inputs == []
    assert slicer.unslice_inputs == ["loss", "other"]
    assert (slicer.mode, slicer.ds_id) == ({"train"}, {"a"})


def test_no_tensor() -> None:
    with pytest.raises(ValueError, match="Unrecognized") as caught:
        mean("text")
    assert str(caught.value) == (
        "Unrecognized tensor type str: expected a tensor of torch, tensorflow or numpy, but got "
        "'text'."
    )
