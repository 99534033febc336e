"""Tensors of each framework, made from arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

Maker = Callable[[Any], Any]


def tf_tensor(array: Any) -> Any:
    return pytest.importorskip("tensorflow").constant(array)


FRAMEWORKS = pytest.mark.parametrize(
    "make",
    [
        pytest.param(np.asarray, id="numpy"),
        pytest.param(torch.from_numpy, id="torch"),
        pytest.param(tf_tensor, id="tf", marks=pytest.mark.tf),
    ],
)


def dtype_of(tensor: Any) -> str:
    """Return the name of a tensor's dtype, such as "float32"."""
    return str(getattr(tensor.dtype, "name", tensor.dtype)).removeprefix("torch.")
