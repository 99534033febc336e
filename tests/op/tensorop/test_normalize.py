"""Pixels centred and scaled."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastnet.op.tensorop import Normalize


@pytest.mark.parametrize("built", [True, False])
def test_channels(built: bool) -> None:
    op = Normalize("x", "y", mean=(0.5, 0.25), std=(0.5, 2.0), max_pixel_value=2.0)
    if built:
        op.build("torch", torch.device("cpu"))
    images = torch.rand(3, 2, 4, 5)
    (found,) = op.forward([images], {})
    mean, std = np.array([0.5, 0.25]), np.array([0.5, 2.0])
    wanted = (images.numpy() / 2.0 - mean[:, None, None]) / std[:, None, None]
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)
