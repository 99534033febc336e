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


def test_an_optimizer_of_no_known_name(sides: Sides) -> None:
    """FastEstimator lets the dict's own KeyError out; fastnet's is a ValueError too."""
    for error in (KeyError, ValueError):
        with pytest.raises(error, match=r"is called 'adamv', but the names are .*'adagrad'"):
            sides.fastnet.build(mlp, "adamv")
    refused(sides.fastestimator, KeyError, mlp, "adamv")


def test_weights_of_another_model(sides: Sides, tmp_path: Path) -> None:
    path = str(tmp_path / "weights.pt")
    torch.save(torch.nn.Linear(3, 3).state_dict(), path)
    refused(sides.fastestimator, RuntimeError, mlp, "sgd", weights_path=path)
    with pytest.raises(ValueError, match="does not fit the model"):
        sides.fastnet.build(mlp, "sgd", weights_path=path)
