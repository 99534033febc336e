"""The functions over tensors of any framework, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch

from fastnet import backend
from fastnet.backend import torch as torch_backend

MAKERS = pytest.mark.parametrize("make", [torch.from_numpy, np.asarray], ids=["torch", "numpy"])
Maker = Callable[[Any], Any]


def same(result: Any, expected: Any, like: Any) -> None:
    assert isinstance(result, type(like))
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-6)
    assert tuple(result.shape) == np.shape(expected)


@MAKERS
class TestConcat:
    @pytest.mark.parametrize("axis", [0, 1, -1])
    def test_value(self, make: Maker, axis: int) -> None:
        parts = [np.array([[0, 1]]), np.array([[2, 3]]), np.array([[4, 5]])]
        tensors = [make(part) for part in parts]
        same(backend.concat(tensors, axis=axis), np.concatenate(parts, axis), tensors[0])
        same(backend.concat(tuple(tensors)), np.concatenate(parts), tensors[0])

    def test_nothing(self, make: Maker) -> None:
        assert backend.concat([]) is None


@MAKERS
class TestAxes:
    @pytest.mark.parametrize("axis", [0, 1, -1])
    def test_expand_dims(self, make: Maker, axis: int) -> None:
        tensor = make(np.array([2, 7, 5]))
        expanded = backend.expand_dims(tensor, axis=axis)
        same(expanded, np.expand_dims(np.array([2, 7, 5]), axis), tensor)
        same(backend.expand_dims(tensor), [[2], [7], [5]], tensor)

    @pytest.mark.parametrize(("axis", "shape"), [(None, (3, 2)), (1, (3, 2, 1)), (-1, (3, 1, 2))])
    def test_squeeze(self, make: Maker, axis: int | None, shape: tuple[int, ...]) -> None:
        array = np.arange(6).reshape(3, 1, 2, 1)
        tensor = make(array)
        same(backend.squeeze(tensor, axis=axis), array.reshape(shape), tensor)

    def test_get_shape(self, make: Maker) -> None:
        assert tuple(backend.get_shape(make(np.ones((3, 2))))) == (3, 2)


@MAKERS
class TestZerosLike:
    def test_own_type(self, make: Maker) -> None:
        tensor = make(np.ones((2, 2), dtype="int16"))
        zeros = backend.zeros_like(tensor)
        same(zeros, np.zeros((2, 2)), tensor)
        assert zeros.dtype == tensor.dtype

    @pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "uint8", "bool"])
    def test_named_type(self, make: Maker, dtype: str) -> None:
        zeros = backend.zeros_like(make(np.ones(2)), dtype=dtype)
        assert str(zeros.dtype).removeprefix("torch.") == dtype


class TestTorchTypes:
    @pytest.mark.parametrize(
        ("name", "dtype"), [("float", torch.float32), ("long", torch.int64), ("half", torch.half)]
    )
    def test_other_names(self, name: str, dtype: torch.dtype) -> None:
        assert backend.zeros_like(torch.ones(2), dtype=name).dtype == dtype

    def test_the_type_itself(self) -> None:
        assert backend.zeros_like(torch.ones(2), dtype=torch.int8).dtype == torch.int8

    @pytest.mark.parametrize("name", ["float33", "nn"])
    def test_unknown(self, name: str) -> None:
        with pytest.raises(ValueError, match="no dtype") as caught:
            backend.zeros_like(torch.ones(2), dtype=name)
        assert str(caught.value) == (
            f"torch has no dtype named '{name}'. Try 'float32' or 'int64'."
        )


@MAKERS
class TestReduceMean:
    array = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")

    @pytest.mark.parametrize("keepdims", [False, True])
    @pytest.mark.parametrize(
        "axis",
        [None, 0, 1, 2, -1, -3, *permutations([0, 2]), [-1, -2], [-2, -1], [0, -1], [0, 1, 2]],
    )
    def test_value(self, make: Maker, axis: Any, keepdims: bool) -> None:
        tensor = make(self.array)
        expected = self.array.mean(
            axis=tuple(axis) if isinstance(axis, list) else axis, keepdims=keepdims
        )
        result = backend.reduce_mean(tensor, axis=axis, keepdims=keepdims)
        np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-5, atol=1e-7)
        assert tuple(result.shape) == expected.shape

    def test_no_axes(self, make: Maker) -> None:
        tensor = make(self.array)
        same(backend.reduce_mean(tensor, axis=[]), self.array, tensor)


def test_torch_averages_the_last_axis_first() -> None:
    # FastEstimator's order, to the bit
    tensor = torch.rand(5, 6, 7)
    expected = tensor.mean(dim=2).mean(dim=0)
    assert torch.equal(backend.reduce_mean(tensor, axis=[0, 2]), expected)


def test_gradients_pass() -> None:
    tensor = torch.ones(2, 3, requires_grad=True)
    backend.reduce_mean(tensor, axis=[0, 1]).backward()
    assert tensor.grad is not None
    assert tensor.grad[0, 0].item() == pytest.approx(1 / 6)


class TestDispatch:
    def test_derived_classes(self) -> None:
        class Mine(torch.Tensor):
            pass

        class Matrix(np.ndarray[Any, Any]):
            pass

        assert tuple(backend.get_shape(torch.ones(2).as_subclass(Mine))) == (2,)
        assert backend.get_shape(np.ones(3).view(Matrix)) == (3,)
        assert backend.get_shape(np.float32(1.5)) == ()
        assert tuple(backend.get_shape(torch.nn.Parameter(torch.ones(4)))) == (4,)

    @pytest.mark.parametrize(
        "call",
        [
            lambda value: backend.concat([value]),
            backend.expand_dims,
            backend.squeeze,
            backend.get_shape,
            backend.zeros_like,
            backend.reduce_mean,
        ],
    )
    def test_unknown_types(self, call: Callable[[Any], Any]) -> None:
        with pytest.raises(ValueError, match="Unrecognized tensor type str") as caught:
            call("x" * 1000)
        assert len(str(caught.value)) < 200


@MAKERS
class TestPadEnds:
    def test_constant(self, make: Maker) -> None:
        pad_ends = torch_backend.pad_ends if make is torch.from_numpy else None
        if pad_ends is None:
            from fastnet.backend.numpy import pad_ends
        tensor = make(np.array([[1, 2]]))
        assert pad_ends(tensor, (1, 2), False, 7).tolist() == [[1, 2, 7, 7], [7, 7, 7, 7]]
        assert pad_ends(tensor, (0, 1), True, 7).tolist() == [[1, 2, 1]]
        assert pad_ends(tensor, (0, 0), True, 7) is tensor
