"""Random tensors: types, shapes, distributions, seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fastnet import backend
from tests.backend.makers import FRAMEWORKS, make, read, type_name

FUNCTIONS = pytest.mark.parametrize(
    "function", [backend.random_normal_like, backend.random_uniform_like]
)


def seed(framework: str) -> None:
    np.random.seed(1)
    torch.manual_seed(1)
    if framework == "tf":
        pytest.importorskip("tensorflow").random.set_seed(1)


@FRAMEWORKS
@FUNCTIONS
class TestBoth:
    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_types(self, framework: str, function: Callable[..., Any], dtype: str) -> None:
        assert type_name(function(make(framework, np.zeros(4)), dtype=dtype)) == dtype
        assert type_name(function(make(framework, np.zeros(4), dtype), dtype=None)) == dtype

    def test_seeds(self, framework: str, function: Callable[..., Any]) -> None:
        drawn = []
        for _ in range(2):
            seed(framework)
            drawn.append(read(function(make(framework, np.zeros(50)))))
        np.testing.assert_array_equal(*drawn)
        assert len(set(drawn[0].tolist())) > 40


@FRAMEWORKS
def test_normal(framework: str) -> None:
    seed(framework)
    drawn = read(backend.random_normal_like(make(framework, np.zeros(20000)), mean=3.0, std=0.5))
    assert drawn.mean() == pytest.approx(3, abs=0.02)
    assert drawn.std() == pytest.approx(0.5, abs=0.02)
    # two thirds within one standard deviation
    assert (abs(drawn - 3) < 0.5).mean() == pytest.approx(0.683, abs=0.02)
