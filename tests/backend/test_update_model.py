"""`update_model` in both frameworks, against sums done by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fastnet
from fastnet import backend
from tests.backend.makers import WITH_GRADIENTS, make, read


class Line:
    """A model of a kernel and a bias, in a framework."""

    def __init__(self, framework: str, optimizer: Any = 0.5, **settings: Any) -> None:
        self.framework = framework
        model_fn, own = self.functions(framework, optimizer)
        self.model = fastnet.build(model_fn, own, model_name="m", **settings)
        self.start = self.weights

    @staticmethod
    def functions(framework: str, optimizer: Any) -> tuple[Callable[[], Any], Any]:
        """Return a model_fn and an optimizer_fn; a number is the learning rate of SGD."""
        if framework == "torch":
            own: Any = lambda parameters: torch.optim.SGD(parameters, lr=optimizer)  # noqa: E731
            model_fn: Callable[[], Any] = lambda: torch.nn.Linear(2, 1)  # noqa: E731
        else:
            keras = pytest.importorskip("tensorflow").keras
            own = lambda: keras.optimizers.SGD(optimizer)  # noqa: E731
            model_fn = lambda: keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])  # noqa: E731
        return model_fn, own if isinstance(optimizer, float) else optimizer

    @property
    def weights(self) -> list[Any]:
        parameters = self.model.parameters if self.framework == "torch" else None
        return [read(one).copy() for one in (parameters() if parameters else self.model.weights)]

    @property
    def ones(self) -> list[Any]:
        return [make(self.framework, np.ones(one.shape, "float32")) for one in self.start]

    def check_moved(self, *by: float) -> None:
        for now, then, distance in zip(self.weights, self.start, by, strict=True):
            np.testing.assert_allclose(now, then - distance, rtol=1e-6)
        if self.framework == "torch":
            assert all(one.grad is None for one in self.model.parameters())


@WITH_GRADIENTS
class TestUpdateModel:
    @pytest.mark.parametrize("mixed", [False, True])
    def test_at_once(self, framework: str, mixed: bool) -> None:
        line = Line(framework, mixed_precision=mixed)
        backend.update_model(line.model, line.ones)
        line.check_moved(0.5, 0.5)
        backend.update_model(line.model, [line.ones[0], None])
        line.check_moved(1.0, 0.5)

    def test_deferred(self, framework: str) -> None:
        line = Line(framework)
        deferred: dict[str, list[Any]] = {}
        for _ in range(2):
            backend.update_model(line.model, line.ones, defer=True, deferred=deferred)
        np.testing.assert_array_equal(line.weights[0], line.start[0])
        assert list(deferred) == ["m"]
        for update in deferred["m"]:
            update()
        line.check_moved(1.0, 1.0)

    def test_of_no_use(self, framework: str) -> None:
        line = Line(framework)
        with pytest.raises(ValueError, match=r"'m'.*deferred.*Pass `deferred`"):
            backend.update_model(line.model, line.ones, defer=True)
        line.check_moved(0.0, 0.0)
        other = Line(framework, None)
        with pytest.raises(ValueError, match=r"'m'.*no optimizer"):
            backend.update_model(other.model, other.ones)
        plain = Line.functions(framework, None)[0]()
        with pytest.raises(AssertionError, match=r"no current_optimizer.*fastnet\.build"):
            backend.update_model(plain, line.ones)
        other.check_moved(0.0, 0.0)

    def test_an_error_of_the_optimizer_names_the_model(self, framework: str) -> None:
        line = Line(framework)
        step = "step" if framework == "torch" else "apply_gradients"

        class Failing(type(line.model.current_optimizer)):  # type: ignore[misc]
            pass

        def fail(*args: Any, **kwargs: Any) -> None:
            raise ArithmeticError("inside")

        setattr(Failing, step, fail)
        other = Line(framework, lambda *parameters: Failing(*parameters, 0.5))
        with pytest.raises(ArithmeticError, match="inside") as caught:
            backend.update_model(other.model, other.ones)
        notes = getattr(caught.value, "__notes__", None) or [str(caught.value)]
        assert "Raised by the update of model 'm'." in notes[0]
        other.check_moved(0.0, 0.0)


def test_in_torch_an_update_at_once_takes_what_was_deferred() -> None:
    line = Line("torch")
    deferred: dict[str, list[Any]] = {"other": []}
    backend.update_model(line.model, line.ones, defer=True, deferred=deferred)
    backend.update_model(line.model, line.ones, deferred=deferred)
    line.check_moved(1.0, 1.0)
    assert list(deferred) == ["other"]


def test_in_torch_frozen_parameters_have_no_gradient() -> None:
    line = Line("torch")
    line.model.weight.requires_grad_(False)
    backend.update_model(line.model, line.ones[1:])
    line.check_moved(0.0, 0.5)


def test_what_is_no_model() -> None:
    with pytest.raises(ValueError, match="Unrecognized model instance int"):
        backend.update_model(3, [])
