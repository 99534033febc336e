"""What `build` makes of models, optimizers, names and weights files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integrations.sides import Sides, mlp


@pytest.mark.parametrize("name", ["adadelta", "adagrad", "adam", "adamax", "rmsprop", "sgd"])
def test_optimizers_by_name(sides: Sides, name: str) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, name, model_name="mlp")
        optimizer = model.optimizer
        (group,) = optimizer.state_dict()["param_groups"]
        return {
            "same": optimizer is model.current_optimizer,
            "class": type(optimizer).__name__,
            "scaler": optimizer.scaler,
            "defaults": {key: repr(value) for key, value in optimizer.defaults.items()},
            "group": {key: repr(value) for key, value in group.items()},
            "model": (model.model_name, model.fe_compiled, model.mixed_precision),
        }

    sides.agree(program)


def test_several_models(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        models = lib.build(
            lambda: (mlp(), mlp(), mlp()),
            ["adam", None, lambda params: torch.optim.SGD(params, lr=0.5)],
            model_name=["one", "two", "three"],
        )
        assert isinstance(models, list)
        return [
            (model.model_name, type(model.optimizer).__name__, type(model.current_optimizer))
            for model in models
        ], models

    sides.agree(program)


def test_no_optimizer_for_any_of_several_models(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        models = lib.build(lambda: [mlp(), mlp()], None, model_name=["one", "two"])
        return [(model.optimizer, model.current_optimizer) for model in models]

    sides.agree(program)


def test_a_list_of_one_model(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        return type(lib.build(lambda: [mlp()], ["sgd"], model_name=["only"])).__name__

    sides.agree(program)


def test_names_that_are_made(sides: Sides) -> None:
    """They count up, over all builds of a process."""

    def program(lib: Any) -> Any:
        first = lib.build(mlp, "sgd").model_name
        start = int(first.removeprefix("model") or 0)
        made = [model.model_name for model in lib.build(lambda: [mlp(), mlp()], ["sgd", None])]
        lib.build(mlp, "sgd", model_name="named")
        made.append(lib.build(mlp, "sgd").model_name)
        return [int(name.removeprefix("model")) - start for name in made]

    assert sides.agree(program) == [1, 2, 3]


def refused(lib: Any, error: Any, *args: Any, **settings: Any) -> None:
    with pytest.raises(error):
        lib.build(*args, **settings)


def returns_no_optimizer(parameters: Any) -> Any:
    return "adam"


@pytest.mark.parametrize(
    ("error", "model_fn", "optimizer", "settings"),
    [
        (ValueError, object, "adam", {}),
        (ValueError, mlp, lambda: None, {}),
        (AssertionError, mlp, returns_no_optimizer, {}),
        (AssertionError, mlp, ["adam", "sgd"], {}),
        (AssertionError, lambda: [mlp(), mlp()], "adam", {}),
        (AssertionError, mlp, "adam", {"model_name": ["a", "b"]}),
        (AssertionError, mlp, "adam", {"weights_path": [None, None]}),
    ],
)
def test_what_is_refused(
    sides: Sides, error: Any, model_fn: Any, optimizer: Any, settings: dict[str, Any]
) -> None:
    sides.agree(lambda lib: refused(lib, error, model_fn, optimizer, **settings))


def test_an_optimizer_of_no_known_name(sides: Sides) -> None:
    """FastEstimator lets the dict's own KeyError out; fastnet's is a ValueError too."""
    for error in (KeyError, ValueError):
        with pytest.raises(error, match=r"is called 'adamv', but the names are .*'adagrad'"):
            sides.fastnet.build(mlp, "adamv")
    refused(sides.fastestimator, KeyError, mlp, "adamv")


def test_weights_from_a_file(sides: Sides, tmp_path: Path) -> None:
    torch.manual_seed(7)
    saved = mlp().state_dict()
    path = str(tmp_path / "weights.pt")
    torch.save(saved, path)

    def program(lib: Any) -> Any:
        one = lib.build(mlp, "sgd", weights_path=path, model_name="one")
        two, three = lib.build(
            lambda: [mlp(), mlp()], ["adam", "sgd"], [None, path], ["two", "three"]
        )
        return one, two, three

    one, _, three = sides.agree(program)
    torch.testing.assert_close(dict(one.state_dict()), dict(saved), rtol=0, atol=0)
    torch.testing.assert_close(dict(three.state_dict()), dict(saved), rtol=0, atol=0)


def test_weights_that_the_other_package_has_saved(sides: Sides, tmp_path: Path) -> None:
    fe = sides.fastestimator
    model = fe.build(mlp, "sgd", model_name="saved")
    path = fe.backend.save_model(model, save_dir=str(tmp_path), model_name="saved")
    loaded = sides.fastnet.build(mlp, "sgd", weights_path=path, model_name="loaded")
    torch.testing.assert_close(dict(loaded.state_dict()), dict(model.state_dict()), rtol=0, atol=0)


def test_weights_of_another_model(sides: Sides, tmp_path: Path) -> None:
    path = str(tmp_path / "weights.pt")
    torch.save(torch.nn.Linear(3, 3).state_dict(), path)
    refused(sides.fastestimator, RuntimeError, mlp, "sgd", weights_path=path)
    with pytest.raises(ValueError, match="does not fit the model"):
        sides.fastnet.build(mlp, "sgd", weights_path=path)


def test_a_weights_file_that_is_missing(sides: Sides, tmp_path: Path) -> None:
    path = str(tmp_path / "nothing.pt")

    def program(lib: Any) -> Any:
        with pytest.raises((ValueError, OSError, AssertionError)):
            lib.build(mlp, "sgd", weights_path=path)

    sides.agree(program)


def test_a_model_twice(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        models = lib.build(lambda: [mlp(), mlp()], None, model_name=["net", "Net"])
        run = lib.op.tensorop.model.ModelOp
        with pytest.raises(AssertionError):
            lib.Network([run(models[0], "x", "y"), run(models[1], "x", "z")])

    sides.agree(program)


def test_a_model_that_was_not_built(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        with pytest.raises(AssertionError, match="build"):
            lib.op.tensorop.model.ModelOp(mlp(), "x", "y")

    sides.agree(program)


def test_trainable_without_gradients(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, None, model_name="mlp")
        with pytest.raises(AssertionError, match="gradients"):
            lib.op.tensorop.model.ModelOp(model, "x", "y", trainable=True, gradients=False)

    sides.agree(program)
