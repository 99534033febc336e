"""Axes in another order."""

from __future__ import annotations

import pytest
import torch

from fastnet.op.tensorop import Permute


@pytest.mark.parametrize("order", [(0, 2, 2), (1, 2), (0, 1, 1)])
def test_order_that_is_none(order: tuple[int, ...]) -> None:
    if order == (1, 2):
        order = (0, -2)  # the same axis, counted from both ends
    with pytest.raises(ValueError, match="Permute") as caught:
        Permute("x", "y", permutation=order)
    assert str(caught.value) == (
        f"Permute's permutation has each axis in it once, counted from 0, but got {order}."
    )


@pytest.mark.parametrize("order", [(2, 0, 1), (0, -1, 1)])
def test_values(order: tuple[int, ...]) -> None:
    given = torch.randn(2, 3, 4)
    (found,) = Permute("x", "y", permutation=order).forward([given], {})
    assert torch.equal(found, given.permute(order))
