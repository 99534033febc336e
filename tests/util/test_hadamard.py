"""Hadamard codes."""

from __future__ import annotations

import numpy as np
import pytest

from fastnet.util.hadamard import hadamard_codes, require_code_length


@pytest.mark.parametrize("length", [1, 2, 4, 8, 32])
class TestCodes:
    def test_bits(self, length: int) -> None:
        codes = hadamard_codes(length)
        assert codes.shape == (length, length)
        assert codes.dtype == "float32"
        assert (np.abs(codes) == 1).all()

    def test_are_far_apart(self, length: int) -> None:
        codes = hadamard_codes(length)
        # without the first column, which alternates, rows differ in half of the rest or more
        for row in range(length):
            for other in range(row):
                assert (codes[row, 1:] != codes[other, 1:]).sum() >= length / 2

    def test_first_column_alternates(self, length: int) -> None:
        first = hadamard_codes(length)[:, 0]
        assert first.tolist() == [-1.0 if row % 2 == 0 else 1.0 for row in range(length)]


@pytest.mark.parametrize(
    ("n_classes", "wanted"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (10, 16), (64, 64)]
)
def test_least_length(n_classes: int, wanted: int) -> None:
    assert require_code_length("Op", n_classes, None) == wanted


def test_length_that_is_given() -> None:
    assert require_code_length("Op", 3, 16) == 16


@pytest.mark.parametrize("length", [0, -4, 3, 12])
def test_no_power_of_two(length: int) -> None:
    with pytest.raises(ValueError, match="Op") as caught:
        require_code_length("Op", 2, length)
    assert str(caught.value) == f"Op's code_length is a power of 2, not {length}."


def test_too_short() -> None:
    with pytest.raises(ValueError, match="Op") as caught:
        require_code_length("Op", 5, 4)
    assert str(caught.value) == (
        "Op has 5 classes, but only 4 codes of length 4. Use a code_length of 8."
    )
