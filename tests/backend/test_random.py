"""Random tensors: types, shapes, distributions, seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fastnet import backend
from tests.backend.makers import FRAMEWORKS, in_graph, make, read, type_name
from tests.network.programs import raising

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
    def test_shape_and_type(self, framework: str, function: Callable[..., Any]) -> None:
        for shape in ((), (3,), (2, 3, 4)):
            drawn = function(make(framework, np.zeros(shape), "int64"))
            assert tuple(drawn.shape) == shape
            assert type_name(drawn) == "float32"

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

    def test_no_such_type(self, framework: str, function: Callable[..., Any]) -> None:
        name = {"torch": "torch", "tf": "TensorFlow", "numpy": "numpy"}[framework]
        with raising(ValueError, f"{name} has no dtype named 'float33'. Try 'float32' or 'int64'."):
            function(make(framework, np.zeros(4)), dtype="float33")


@FRAMEWORKS
def test_normal(framework: str) -> None:
    seed(framework)
    drawn = read(backend.random_normal_like(make(framework, np.zeros(20000)), mean=3.0, std=0.5))
    assert drawn.mean() == pytest.approx(3, abs=0.02)
    assert drawn.std() == pytest.approx(0.5, abs=0.02)
    # two thirds within one standard deviation
    assert (abs(drawn - 3) < 0.5).mean() == pytest.approx(0.683, abs=0.02)


@pytest.mark.tf
@FUNCTIONS
def test_graphs_of_any_batch_size(function: Callable[..., Any]) -> None:
    drawn = in_graph(function, np.zeros((6, 4)))
    assert tuple(drawn.shape) == (6, 4)
    assert len(set(read(drawn).ravel().tolist())) == 24
