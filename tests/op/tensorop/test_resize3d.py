"""Volumes in another size."""

from __future__ import annotations

import torch

from fastnet.op.tensorop import Resize3D


def test_area() -> None:
    volumes = torch.randn(2, 3, 4, 6, 8)
    op = Resize3D("x", "y", output_shape=(2, 3, 4), resize_mode="area")
    (found,) = op.forward([volumes], {})
    wanted = volumes.reshape(2, 3, 2, 2, 3, 2, 4, 2).mean((3, 5, 7))
    torch.testing.assert_close(found, wanted)
