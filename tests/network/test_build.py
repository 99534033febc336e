"""Models made ready: optimizers, names, weights."""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fastnet
from fastnet.schedule import EpochScheduler, RepeatScheduler
from tests.network.programs import line, mlp, same_weights, seeded, sgd, weights
from tests.network.schedulers import Doubling

DEFAULTS = {
    "adadelta": (torch.optim.Adadelta, {}),
    "adagrad": (torch.optim.Adagrad, {}),
    "adam": (torch.optim.Adam, {}),
    "adamax": (torch.optim.Adamax, {}),
    "rmsprop": (torch.optim.RMSprop, {}),
    "sgd": (torch.optim.SGD, {"lr": 0.01}),
}


class TestOptimizers:
    @pytest.mark.parametrize("name", DEFAULTS)
    def test_by_name(self, name: str) -> None:
        model = fastnet.build(line, name)
        cls, settings = DEFAULTS[name]
        optimizer = model.optimizer
        assert type(optimizer) is cls
        assert model.current_optimizer is optimizer
        assert optimizer.defaults == cls(model.parameters(), **settings).defaults
        (group,) = optimizer.param_groups
        assert all(map(operator.is_, group["params"], model.parameters()))
        assert optimizer.scaler is None

    @pytest.mark.parametrize("none", [None, []])
    def test_none(self, none: Any) -> None:
        model = fastnet.build(line, none)
        assert model.optimizer is None
        assert model.current_optimizer is None
        assert model.fe_compiled is True


@pytest.mark.parametrize(
    ("scheduler", "kinds"),
    [
        (EpochScheduler({1: "adam", 3: None, 4: sgd()}), "Adam Adam None SGD SGD"),
        (EpochScheduler({2: "adam"}), "None Adam Adam Adam Adam"),
        (RepeatScheduler(["adam", sgd(), None]), "Adam SGD None Adam SGD"),
        (Doubling(), "SGD SGD None None None"),
    ],
    ids=["epochs", "late", "turns", "own"],
)
def test_each_scheduled_optimizer_is_made_once_and_the_first_is_current(
    scheduler: Any, kinds: str
) -> None:
    held = {name: repr(value) for name, value in vars(scheduler).items()}
    model = fastnet.build(line, scheduler)
    # the caller's is untouched, so that it is good for another model
    assert {name: repr(value) for name, value in vars(scheduler).items()} == held
    assert model.optimizer is not scheduler
    current = [model.optimizer.get_current_value(epoch) for epoch in range(1, 6)]
    again = [model.optimizer.get_current_value(epoch) for epoch in range(1, 6)]
    assert all(a is b for a, b in zip(current, again, strict=True))
    named = [type(optimizer).__name__.replace("NoneType", "None") for optimizer in current]
    assert named == kinds.split()
    assert model.current_optimizer is current[0]
    assert all(optimizer.scaler is None for optimizer in current if optimizer)


class TestSeveral:
    @pytest.mark.parametrize("kind", [list, tuple])
    def test_a_list_comes_back(self, kind: Any) -> None:
        made = [line(), mlp()]
        models = fastnet.build(
            lambda: kind(made), ["adam", None], model_name=["a", "b"], mixed_precision=True
        )
        assert type(models) is list
        assert models[0] is made[0]
        assert models[1] is made[1]
        assert [model.model_name for model in models] == ["a", "b"]
        assert type(models[0].optimizer) is torch.optim.Adam
        assert models[1].optimizer is None
        assert all(model.mixed_precision and model.fe_compiled for model in models)

    @pytest.mark.parametrize(
        ("made", "name"),
        [
            (3, "int"),
            ("model", "str"),
            ([nn.Linear], "type"),
            (object(), "object"),
            (None, "NoneType"),
            ([], "NoneType"),
        ],
    )
    def test_what_is_no_model(self, made: Any, name: str) -> None:
        with pytest.raises(ValueError, match=rf"made {name}.* torch\.nn\.Module or a Keras model"):
            fastnet.build(lambda: made, None)


def test_names_that_are_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["fastnet.network.build"], "_names", itertools.count())
    names = [fastnet.build(line, None).model_name for _ in range(2)]
    names += [model.model_name for model in fastnet.build(lambda: [line(), line()], None)]
    assert fastnet.build(line, None, model_name="mine").model_name == "mine"
    names.append(fastnet.build(line, None).model_name)
    assert names == ["model", "model1", "model2", "model3", "model4"]


class TestWeights:
    """`build` loads weights; the formats of the files are tested with `fastnet.backend`."""

    @pytest.fixture
    def saved(self, tmp_path: Path) -> tuple[str, nn.Module]:
        model = seeded(mlp, 7)
        path = tmp_path / "weights.pt"
        torch.save(model.state_dict(), path)
        return str(path), model

    @pytest.mark.parametrize("kind", [str, Path, lambda path: [path]])
    def test_are_loaded(self, saved: Any, kind: Callable[[str], Any]) -> None:
        path, other = saved
        model = fastnet.build(mlp, "sgd", weights_path=kind(path))
        assert same_weights(model, other)

    def test_for_some_models(self, saved: Any) -> None:
        path, other = saved
        first, second = mlp(), mlp()
        before = weights(first)
        fastnet.build(lambda: [first, second], [None, None], weights_path=[None, path])
        assert same_weights(first, before)
        assert same_weights(second, other)

    def test_before_the_optimizer_is_made(self, saved: Any) -> None:
        path, other = saved
        seen: list[torch.Tensor] = []

        def look(parameters: Any) -> torch.optim.Optimizer:
            parameters = list(parameters)
            seen.append(parameters[0].detach().clone())
            return torch.optim.SGD(parameters, lr=0.1)

        fastnet.build(mlp, look, weights_path=path)
        assert torch.equal(seen[0], other[0].weight)
