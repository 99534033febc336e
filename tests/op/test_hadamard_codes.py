"""Hadamard codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastnet.op.hadamard_codes import hadamard_codes, resolve_code_length


@pytest.mark.parametrize("length", [1, 2, 4, 8, 32])
def test_codes_are_far_apart(length: int) -> None:
    codes = hadamard_codes(length)
    assert codes.shape == (length, length)
    assert codes.dtype == "float32"
    assert (np.abs(codes) == 1).all()
    # The first column alternates, so only the others are compared.
    assert codes[:, 0].tolist() == [-1.0 if row % 2 == 0 else 1.0 for row in range(length)]
    for row in range(length):
        for other in range(row):
            assert (codes[row, 1:] != codes[other, 1:]).sum() >= length / 2


@pytest.mark.parametrize(
    ("n_classes", "wanted"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (10, 16), (64, 64)]
)
def test_the_shortest_length(n_classes: int, wanted: int) -> None:
    assert resolve_code_length("Op", n_classes, None) == wanted


@pytest.mark.parametrize(
    ("n_classes", "length", "text"),
    [
        *((2, length, f"power of 2, not {length}") for length in (0, -4, 3, 12)),
        (5, 4, "5 classes, but only 4 codes.*code_length of 8"),
        (0, None, "n_classes.* not 0"),
        (2.5, None, r"n_classes.* not 2\.5"),
    ],
)
def test_invalid_lengths(n_classes: Any, length: int | None, text: str) -> None:
    with pytest.raises(ValueError, match=f"Op.*{text}"):
        resolve_code_length("Op", n_classes, length)
