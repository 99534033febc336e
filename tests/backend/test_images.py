"""Normalized images and resized volumes, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastnet import backend
from tests.backend.makers import (
    FRAMEWORKS,
    in_graph,
    make,
    read,
    type_name,
)
from tests.network.programs import raising

IMAGES = np.random.default_rng(0).integers(0, 256, (2, 5, 4, 3))
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
VOLUMES = np.random.default_rng(1).standard_normal((2, 4, 6, 5, 3))


def laid_out(framework: str, array: Any) -> Any:
    """Put channels where the framework wants them."""
    return np.moveaxis(array, -1, 1) if framework == "torch" else array


def channels_last(framework: str, array: Any) -> Any:
    return np.moveaxis(array, 1, -1) if framework == "torch" else array


@FRAMEWORKS
class TestNormalize:
    @pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "float32", "float64"])
    def test_defaults(self, framework: str, dtype: str) -> None:
        tensor = make(framework, laid_out(framework, IMAGES), dtype)
        before = read(tensor).copy()
        result = backend.normalize(tensor)
        expected = (IMAGES / 255 - MEAN) / STD
        np.testing.assert_allclose(channels_last(framework, read(result)), expected, atol=2e-6)
        assert type_name(result) == "float32"
        np.testing.assert_array_equal(read(tensor), before)


def area_oracle(array: Any, size: tuple[int, ...]) -> Any:
    """Average over the part of the old volume that each new position covers."""
    for axis, new in enumerate(size, start=1):
        old = array.shape[axis]
        # as many copies of each position as make the parts whole numbers of them
        fine = np.repeat(array, new, axis=axis)
        shape = [*fine.shape[:axis], new, old, *fine.shape[axis + 1 :]]
        array = fine.reshape(shape).mean(axis=axis + 1)
    return array


SIZES = [(2, 3, 5), (4, 6, 5), (3, 4, 2), (8, 12, 10), (5, 7, 6), (1, 1, 1)]


@FRAMEWORKS
class TestResize3D:
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8"])
    def test_nearest(self, framework: str, size: tuple[int, ...], dtype: str) -> None:
        tensor = make(framework, laid_out(framework, np.abs(9 * VOLUMES)), dtype)
        result = backend.resize_3d(tensor, size)
        expected = channels_last(framework, read(tensor))
        for axis, new in enumerate(size, start=1):
            # torch looks at where a new position begins, TensorFlow at its middle
            offset = 0 if framework == "torch" else 0.5
            places = ((np.arange(new) + offset) * expected.shape[axis] / new).astype(int)
            expected = np.take(expected, places, axis=axis)
        np.testing.assert_array_equal(channels_last(framework, read(result)), expected)
        assert type_name(result) == dtype

    @pytest.mark.parametrize("size", [(2, 3, 5), (1, 2, 1), (4, 6, 5), (8, 12, 10)])
    def test_area(self, framework: str, size: tuple[int, ...]) -> None:
        tensor = make(framework, laid_out(framework, VOLUMES), "float32")
        if framework == "numpy":
            with pytest.raises(ValueError, match="'nearest', but got 'area'"):
                backend.resize_3d(tensor, size, "area")
            return
        result = backend.resize_3d(tensor, size, "area")
        expected = area_oracle(VOLUMES, size)
        np.testing.assert_allclose(
            channels_last(framework, read(result)), expected, rtol=1e-5, atol=1e-6
        )
        assert type_name(result) == "float32"

    def test_another_mode(self, framework: str) -> None:
        text = "resize_mode must be one of ['nearest', 'area'], but got 'linear'."
        with raising(AssertionError, text):
            backend.resize_3d(make(framework, VOLUMES), (2, 2, 2), "linear")


@pytest.mark.tf
@pytest.mark.parametrize("mode", ["nearest", "area"])
def test_graphs_of_any_size(mode: str) -> None:
    tf = pytest.importorskip("tensorflow")
    array = VOLUMES.astype("float32")
    expected = read(backend.resize_3d(make("tf", array), (3, 4, 2), mode))
    result = in_graph(lambda x: backend.resize_3d(x, (3, 4, 2), mode), array)
    np.testing.assert_allclose(read(result), expected, rtol=1e-6)
    spec = tf.TensorSpec([None, None, None, 5, 3], tf.float32)
    graph = tf.function(
        lambda x: backend.resize_3d(x, (3, 4, 2), mode), input_signature=[spec], autograph=False
    )
    np.testing.assert_allclose(read(graph(array)), expected, rtol=1e-6)
