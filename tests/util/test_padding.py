"""Padding of arrays to a common shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastnet.util import pad_batch, pad_data

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("target", [(1, 2), (2, 4), (1, 3)])
def test_an_array_is_padded_at_the_end_of_each_axis(target: tuple[int, int]) -> None:
    data = np.array([[1, 2]])
    padded = pad_data(data, target, -1)
    expected = np.full(target, -1)
    expected[:1, :2] = data
    np.testing.assert_array_equal(padded, expected)
    assert padded is not data


@pytest.mark.parametrize("target", [(3, 3, 3), (4, 1), (3,)])
def test_impossible_shapes(target: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"shape \(1, 2\) cannot be padded to \("):
        pad_data(np.ones((1, 2)), target, 0)


def test_a_batch_is_padded_to_the_largest_size_of_each_axis() -> None:
    batch = [{"x": np.ones((2, 2)), "y": 8}, {"x": np.ones((3, 1)), "y": 4}]
    pad_batch(batch, 0)
    assert batch[0]["x"].tolist() == [[1, 1], [1, 1], [0, 0]]
    assert batch[1]["x"].tolist() == [[1, 0], [1, 0], [1, 0]]
    assert [sample["y"] for sample in batch] == [8, 4]


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ([{"x": 1, "y": 2}, {"x": 1}], r"sample 0 has \['x', 'y'\] and sample 1 has \['x'\]"),
        (
            [{"x": np.ones(2)}, {"x": np.ones((2, 1))}],
            r"'x' have different numbers of axes.*\[\(2,\), \(2, 1\)\]",
        ),
    ],
)
def test_batches_that_cannot_be_padded(batch: list[dict[str, Any]], text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        pad_batch(batch, 0)
