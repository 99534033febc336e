"""Public functions pick the package of the framework of their first tensor."""

from __future__ import annotations

import inspect
import pickle
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from fastnet import backend
from fastnet.backend import images, losses, math, reductions, tensors
from fastnet.backend.dispatch import get_backend
from fastnet.op.tensorop import TensorOp

MODULES: list[ModuleType] = [images, losses, math, reductions, tensors]
COMPOSED = {"dice_score", "focal_loss", "get_image_dims", "iwd", "normalize", "tensor_pow"}
NAMES = sorted({name for module in MODULES for name in module.__all__} - COMPOSED)
X = np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize("framework", ["torch", "tf", "np"])
@pytest.mark.parametrize("name", NAMES)
def test_implementations_take_the_parameters_of_the_public_function(
    framework: str, name: str
) -> None:
    if framework == "tf":
        pytest.importorskip("tensorflow")
    own = list(inspect.signature(getattr(backend, name)).parameters)
    function = getattr(get_backend(framework), name)
    if not getattr(function, "__module__", "").startswith("fastnet"):
        return  # a function of numpy, which is called by position
    theirs = inspect.signature(function).parameters
    assert list(theirs)[: len(own)] == own
    assert all(one.default is not one.empty for one in list(theirs.values())[len(own) :])


@pytest.mark.parametrize("name", backend.__all__)
def test_public_functions_are_documented(name: str) -> None:
    function = getattr(backend, name)
    assert pickle.loads(pickle.dumps(function)) is function
    assert "Args:" in function.__doc__ or "; see `" in function.__doc__
    assert "return" in function.__annotations__


@pytest.mark.parametrize("name", sorted({*NAMES, *COMPOSED, "get_gradient"}))
def test_a_value_of_another_type(name: str) -> None:
    function = getattr(backend, name)
    parameters = inspect.signature(function).parameters.values()
    values: list[Any] = [["x" * 1000] for one in parameters if one.default is one.empty]
    if name in ("clip_by_value", "percentile"):
        values = [values[0], 50]
    with pytest.raises(ValueError, match=r"Unrecognized tensor type (list|str)") as caught:
        function(*values)
    assert len(str(caught.value)) < 200


def test_an_unknown_framework() -> None:
    with pytest.raises(ValueError, match="'torch', 'tf' or 'np', but got 'troch'"):
        get_backend("troch")


def test_an_op_that_was_not_built_finds_its_backend_by_value() -> None:
    backend = TensorOp("x", "y").backend
    np.testing.assert_array_equal(backend.exp(X), np.exp(X))
    assert backend.exp(torch.zeros(1)) == 1
    with pytest.raises(TypeError, match="mix_up runs on tensors of torch or TensorFlow"):
        backend.mix_up(X, X, 1.0, True)
