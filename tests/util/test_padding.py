"""Arrays padded to one size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastnet.util import pad_batch, pad_data


class TestPadData:
    def test_every_axis_grows_at_its_end(self) -> None:
        padded = pad_data(np.array([[1, 2]]), (2, 4), -1)
        assert padded.tolist() == [[1, 2, -1, -1], [-1, -1, -1, -1]]

    def test_same_shape(self) -> None:
        data = np.array([[1, 2]])
        padded = pad_data(data, (1, 2), 0)
        assert padded.tolist() == [[1, 2]]
        assert padded is not data

    @pytest.mark.parametrize("target", [(3, 3, 3), (4, 1), (3,)])
    def test_impossible_targets(self, target: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="cannot be padded") as caught:
            pad_data(np.ones((1, 2)), target, 0)
        assert str(caught.value) == (
            f"An array of shape (1, 2) cannot be padded to {target}: the target must have the same "
            "number of axes, and none of them smaller."
        )


class TestPadBatch:
    def test_largest_size_of_each_axis(self) -> None:
        batch = [{"x": np.ones((2, 2)), "y": 8}, {"x": np.ones((3, 1)), "y": 4}]
        pad_batch(batch, 0)
        assert batch[0]["x"].tolist() == [[1, 1], [1, 1], [0, 0]]
        assert batch[1]["x"].tolist() == [[1, 0], [1, 0], [1, 0]]
        assert [sample["y"] for sample in batch] == [8, 4]

    def test_equal_shapes_are_left_alone(self) -> None:
        array = np.ones(2)
        batch = [{"x": array}, {"x": np.ones(2)}]
        pad_batch(batch, 0)
        assert batch[0]["x"] is array

    def test_no_samples(self) -> None:
        pad_batch([], 0)

    @pytest.mark.parametrize(
        ("batch", "text"),
        [
            (
                [{"x": 1, "y": 2}, {"x": 1}],
                "All samples of a batch must have the same keys, but sample 0 has ['x', 'y'] and "
                "sample 1 has ['x'].",
            ),
            (
                [{"x": np.ones(2)}, {"x": np.ones((2, 1))}],
                "The arrays of 'x' have different numbers of axes, so they cannot be padded to one "
                "size. Their shapes: [(2,), (2, 1)].",
            ),
        ],
    )
    def test_errors(self, batch: list[dict[str, Any]], text: str) -> None:
        with pytest.raises(AssertionError) as caught:
            pad_batch(batch, 0)
        assert str(caught.value) == text
