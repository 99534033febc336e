"""The same values in another shape."""

from __future__ import annotations

import pytest
import torch

from fastnet.op.tensorop import Reshape


def test_two_open_lengths() -> None:
    with pytest.raises(ValueError, match="Reshape") as caught:
        Reshape("x", "y", shape=(-1, 2, -1))
    assert str(caught.value) == (
        "Reshape's shape is a length or several, of which one can be -1, to be worked out, but got "
        "(-1, 2, -1)."
    )


@pytest.mark.parametrize("shape", [-1, 6, (3, 2), (1, -1, 3)])
def test_values(shape: int | tuple[int, ...]) -> None:
    given = torch.randn(2, 3)
    (found,) = Reshape("x", "y", shape=shape).forward([given], {})
    assert torch.equal(found, given.reshape(shape))
