"""`update_model` in both frameworks, against sums done by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastnet import backend
from tests.conformance.frameworks import FRAMEWORKS, make_layers

LAYERS = make_layers(2, 1)
EITHER = pytest.mark.parametrize("way", ["torch", pytest.param("tf-eager", marks=pytest.mark.tf)])


class Line:
    """A model of a kernel and a bias, in a framework."""

    def __init__(self, way: str, optimizer: Any = None, **settings: Any) -> None:
        self.fw = FRAMEWORKS[way]
        self.model = self.fw.build(LAYERS, optimizer or self.fw.sgd(0.5), "m", **settings)

    @property
    def ones(self) -> list[Any]:
        shapes = [(1, 2), (1,)] if self.fw.target == "torch" else [(2, 1), (1,)]
        return [self.fw.tensor(np.ones(shape, "float32")) for shape in shapes]

    def check_moved(self, *by: float) -> None:
        for now, then, distance in zip(self.fw.weights(self.model), LAYERS[0], by, strict=True):
            np.testing.assert_allclose(now, then - np.float32(distance), rtol=1e-6)
        if self.fw.target == "torch":
            assert all(one.grad is None for one in self.model.parameters())


@EITHER
class TestUpdateModel:
    @pytest.mark.parametrize("mixed", [False, True])
    def test_at_once(self, way: str, mixed: bool) -> None:
        line = Line(way, mixed_precision=mixed)
        backend.update_model(line.model, line.ones)
        line.check_moved(0.5, 0.5)
        backend.update_model(line.model, [line.ones[0], None])
        line.check_moved(1.0, 0.5)

    def test_deferred(self, way: str) -> None:
        line = Line(way)
        deferred: dict[str, list[Any]] = {}
        for _ in range(2):
            backend.update_model(line.model, line.ones, defer=True, deferred=deferred)
        assert np.array_equal(line.fw.weights(line.model)[0], LAYERS[0][0])
        assert list(deferred) == ["m"]
        for update in deferred["m"]:
            update()
        line.check_moved(1.0, 1.0)

    def test_another_number_of_gradients_is_an_error(self, way: str) -> None:
        line = Line(way)
        with pytest.raises(ValueError, match=r"'m' got 1 gradient, .* 2 trainable parameters"):
            backend.update_model(line.model, line.ones[:1])
        with pytest.raises(ValueError, match=r"got 3 gradients"):
            backend.update_model(line.model, [*line.ones, None])
        line.check_moved(0.0, 0.0)

    def test_of_no_use(self, way: str) -> None:
        line = Line(way)
        with pytest.raises(ValueError, match=r"'m'.*deferred.*Pass `deferred`"):
            backend.update_model(line.model, line.ones, defer=True)
        line.check_moved(0.0, 0.0)
        bare = line.fw.build(LAYERS, None, "m")
        with pytest.raises(ValueError, match=r"'m'.*no optimizer"):
            backend.update_model(bare, line.ones)
        plain = line.fw.make_model(LAYERS)
        with pytest.raises(AssertionError, match=r"no current_optimizer.*fastnet\.build"):
            backend.update_model(plain, line.ones)

    def test_an_error_of_the_optimizer_names_the_model(self, way: str) -> None:
        class Failing(type(Line(way).model.current_optimizer)):  # type: ignore[misc]
            pass

        def fail(*args: Any, **kwargs: Any) -> None:
            raise ArithmeticError("inside")

        setattr(Failing, "step" if way == "torch" else "apply_gradients", fail)
        line = Line(way, lambda *parameters: Failing(*parameters, 0.5))
        with pytest.raises(ArithmeticError, match="inside") as caught:
            backend.update_model(line.model, line.ones)
        notes = getattr(caught.value, "__notes__", None) or [str(caught.value)]
        assert "Raised by the update of model 'm'." in notes[0]
        line.check_moved(0.0, 0.0)


def test_in_torch_an_update_at_once_takes_what_was_deferred() -> None:
    line = Line("torch")
    deferred: dict[str, list[Any]] = {"other": []}
    backend.update_model(line.model, line.ones, defer=True, deferred=deferred)
    backend.update_model(line.model, line.ones, deferred=deferred)
    line.check_moved(1.0, 1.0)
    assert list(deferred) == ["other"]
