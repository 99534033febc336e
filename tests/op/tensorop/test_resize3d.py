"""Volumes in another size."""

from __future__ import annotations

import pytest
import torch

from fastnet.op.tensorop import Resize3D


def test_mode_that_is_none() -> None:
    with pytest.raises(AssertionError) as caught:
        Resize3D("x", "y", output_shape=(1, 1, 1), resize_mode="cubic")
    assert str(caught.value) == "Resize3D's resize_mode is one of ['nearest', 'area'], not 'cubic'."


def test_count_of_lengths() -> None:
    with pytest.raises(ValueError, match="Resize3D") as caught:
        Resize3D("x", "y", output_shape=(1, 1))
    assert str(caught.value) == (
        "Resize3D's output_shape is a height, a width and a depth, without batch and channels, not "
        "(1, 1)."
    )


def test_area() -> None:
    volumes = torch.randn(2, 3, 4, 6, 8)
    op = Resize3D("x", "y", output_shape=(2, 3, 4), resize_mode="area")
    (found,) = op.forward([volumes], {})
    wanted = volumes.reshape(2, 3, 2, 2, 3, 2, 4, 2).mean((3, 5, 7))
    torch.testing.assert_close(found, wanted)


def test_what_is_no_volume() -> None:
    with pytest.raises(ValueError, match="Resize3D") as caught:
        Resize3D("x", "y", output_shape=(1, 1, 1)).forward([torch.ones(2, 2, 2, 2)], {})
    assert str(caught.value) == (
        "Resize3D reads volumes, which have 5 axes with the batch and the channels, but got a "
        "tensor of 4."
    )
