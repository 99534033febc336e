"""Numpy ops that do the same to each input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastnet.op.numpyop import forward_numpyop
from fastnet.op.numpyop.univariate import (
    Hadamard,
    Minmax,
    Onehot,
)

STATE = {"mode": "train"}
X = np.array([[1, -2, 3], [0.5, 4, -1]])


def run(op: Any, value: Any) -> Any:
    data = {"x": value}
    assert forward_numpyop([op], data, STATE) is None
    return data["y"]


def check(actual: Any, expected: Any, dtype: str) -> None:
    assert isinstance(actual, np.ndarray)
    assert actual.dtype == dtype
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


class TestValues:
    @pytest.mark.parametrize(("classes", "length"), [(2, None), (5, None), (5, 16), (16, 16)])
    def test_hadamard(self, classes: int, length: int | None) -> None:
        op = Hadamard("x", "y", n_classes=classes, code_length=length)
        codes = run(op, np.arange(classes))
        size = length or {2: 2, 5: 8}[classes]
        assert codes.shape == (classes, size)
        assert codes.dtype == "float32"
        assert set(np.unique(codes)) == {-1, 1}
        differ = (codes[:, None] != codes[None]).sum(-1)
        assert (differ[~np.eye(classes, dtype=bool)] >= size // 2 - 1).all()
        for index in (1, [1], np.array([1]), np.int64(1)):
            np.testing.assert_array_equal(run(op, index), codes[1])
        np.testing.assert_array_equal(run(op, [1, 0]), codes[[1, 0]])

    def test_minmax(self) -> None:
        check(run(Minmax("x", "y"), X), (X + 2) / 6, "float32")
        check(run(Minmax("x", "y", new_min=-1, new_max=3), X), (X + 2) / 6 * 4 - 1, "float32")
        check(run(Minmax("x", "y", new_min=2, new_max=3), np.full(3, 7)), [2] * 3, "float32")
        bytes_ = np.array([0, 51, 255], "uint8")
        check(run(Minmax("x", "y"), bytes_), [0, 0.2, 1], "float32")


@pytest.mark.parametrize("index", [3, 1.0])
def test_an_index_that_is_no_class(index: Any) -> None:
    with pytest.raises(AssertionError, match="Onehot"):
        Onehot("x", "y", num_classes=3).forward([index], STATE)
