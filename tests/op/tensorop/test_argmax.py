"""The place of the largest value."""

from __future__ import annotations

import pytest
import torch

from fastnet.op.tensorop import Argmax


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("built", [True, False])
def test_against_numpy(axis: int, built: bool) -> None:
    one, two = torch.randn(3, 4, 5), torch.randn(6, 2)
    op = Argmax(["a", "b"], ["y", "z"], axis=axis)
    if built:
        op.build("torch", torch.device("cpu"))
    found = op.forward([one, two], {})
    for places, values in zip(found, (one, two), strict=True):
        assert places.tolist() == values.numpy().argmax(axis).tolist()
