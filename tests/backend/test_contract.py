"""Each tensor function stands once, with its signature and docstring; frameworks have bodies."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from fastnet import backend
from fastnet.backend import dispatch
from fastnet.frameworks import FRAMEWORKS, MissingPart, framework_named, part_of

# what is for more than tensors, or is made of the other functions
OF_MODELS = {"feed_forward", "get_lr", "l2_regularization", "load_model", "save_model", "set_lr"}
COMPOSED = {"convert_tensor_precision", "dice_score", "focal_loss", "iwd", "tensor_pow"}
OF_NESTS = {"cast", "to_shape", "to_tensor", "to_type"}
OF_GRADIENTS = {"get_gradient", "update_model", "watch"}
NAMES = sorted(set(backend.EXPORTS) - OF_MODELS - COMPOSED - OF_NESTS - OF_GRADIENTS)


def body_of(framework: str, name: str) -> Any:
    home = "losses." if backend.EXPORTS[name] == "losses" else ""
    return part_of(framework, home + name)


@pytest.mark.parametrize("framework", ["torch", "tf", "np"])
@pytest.mark.parametrize("name", NAMES)
def test_bodies_have_the_parameters_of_the_function(framework: str, name: str) -> None:
    pytest.importorskip(framework_named(framework).library)
    own = list(inspect.signature(getattr(backend, name)).parameters)
    theirs = inspect.signature(body_of(framework, name)).parameters
    assert list(theirs)[: len(own)] == own
    # what a body has besides is for ops
    assert all(one.default is not one.empty for one in list(theirs.values())[len(own) :])


@pytest.mark.parametrize("name", NAMES)
def test_what_a_program_sees(name: str) -> None:
    function = getattr(backend, name)
    assert function.__name__ == function.__qualname__ == name
    assert function.__module__ == f"fastnet.backend.{backend.EXPORTS[name]}"
    for heading in ("Args:", "Returns:", ">>> "):
        assert heading in function.__doc__
    assert "return" in function.__annotations__
    assert pickle.loads(pickle.dumps(function)) is function
    assert inspect.getsource(function)


X = np.arange(6.0).reshape(2, 3)


def test_defaults_and_names() -> None:
    for x in (X, torch.tensor(X)):
        assert tuple(backend.expand_dims(x).shape) == (2, 1, 3)
        assert tuple(backend.expand_dims(x, 0).shape) == (1, 2, 3)
        assert tuple(backend.expand_dims(axis=-1, tensor=x).shape) == (2, 3, 1)
        assert backend.hinge(y_pred=x[0], y_true=x[0]).shape == ()
        assert backend.mean_squared_error(x, x).shape == (2,)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: backend.expand_dims(), "missing 1 required positional argument: 'tensor'"),
        (lambda: backend.permute(X), "missing 1 required positional argument: 'permutation'"),
        (lambda: backend.exp(X, 2), "takes 1 positional argument but 2 were given"),
        (lambda: backend.exp(X, base=2), "got an unexpected keyword argument 'base'"),
    ],
)
def test_a_wrong_call(call: Any, text: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert text in str(caught.value)


def test_a_function_that_a_framework_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd:
        pass

    monkeypatch.setitem(dispatch._by_type, Odd, part_of("np"))
    monkeypatch.delattr("fastnet.backend.numpy.sign")
    with pytest.raises(MissingPart) as caught:
        backend.sign(Odd())
    assert str(caught.value) == (
        "fastnet.backend.sign needs 'sign' of the framework, but fastnet.backend.numpy has none. "
        "CONTRIBUTING.md, 'Add a framework', lists what one has to bring."
    )


def test_a_value_of_no_framework() -> None:
    with pytest.raises(ValueError, match="Unrecognized tensor type str") as caught:
        backend.exp("text")
    assert str(caught.value) == (
        "Unrecognized tensor type str: expected a tensor of torch, tensorflow or numpy, but got "
        "'text'."
    )
    assert list(FRAMEWORKS) == ["torch", "tf", "np"]
