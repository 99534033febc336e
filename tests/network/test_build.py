"""Models made ready: optimizers, names, weights."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fastnet
from fastnet.errors import UnknownNameError, WrongOptimizerError
from fastnet.network import TorchNetwork
from fastnet.op.tensorop.model import ModelOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
from tests.network.programs import line, mlp, run, same_weights, seeded, sgd, weights
from tests.network.schedulers import Doubling

DEFAULTS = {
    "adadelta": (torch.optim.Adadelta, {}),
    "adagrad": (torch.optim.Adagrad, {}),
    "adam": (torch.optim.Adam, {}),
    "adamax": (torch.optim.Adamax, {}),
    "rmsprop": (torch.optim.RMSprop, {}),
    "sgd": (torch.optim.SGD, {"lr": 0.01}),
}


def takes_nothing() -> None:
    """Take no parameters, and return no optimizer."""


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
        parameters = list(model.parameters())
        assert len(group["params"]) == len(parameters)
        assert all(a is b for a, b in zip(group["params"], parameters, strict=True))
        assert optimizer.scaler is None

    def test_by_function(self) -> None:
        given: list[Any] = []

        def make(parameters: Any) -> torch.optim.Optimizer:
            given.extend(parameters)
            return torch.optim.AdamW(given, lr=0.5)

        model = fastnet.build(line, make)
        assert type(model.optimizer) is torch.optim.AdamW
        assert all(a is b for a, b in zip(given, model.parameters(), strict=True))
        assert model.optimizer.scaler is None

    def test_by_class(self) -> None:
        assert type(fastnet.build(line, torch.optim.Adam).optimizer) is torch.optim.Adam

    @pytest.mark.parametrize("none", [None, []])
    def test_none(self, none: Any) -> None:
        model = fastnet.build(line, none)
        assert model.optimizer is None
        assert model.current_optimizer is None
        assert model.fe_compiled is True

    @pytest.mark.parametrize(
        ("source", "kind", "text"),
        [
            ("sdg", UnknownNameError, "'m' is called 'sdg', .*'adam'.* Did you mean 'sgd'"),
            (3, WrongOptimizerError, "'m' is of type int.* Pass a name; a function"),
            (takes_nothing, WrongOptimizerError, "'m' failed .*takes_nothing.* takes one argument"),
            (lambda parameters: list(parameters), WrongOptimizerError, "'m' returned list"),
            (lambda parameters: None, WrongOptimizerError, "'m' returned NoneType"),
            (torch.optim.SGD(line().parameters()), WrongOptimizerError, "'m' is of type SGD"),
        ],
    )
    def test_that_cannot_be_made(self, source: Any, kind: Any, text: str) -> None:
        for each in (source, EpochScheduler({1: "sgd", 2: source})):
            with pytest.raises(kind, match=text):
                fastnet.build(line, each, model_name="m")

    def test_what_failed_is_the_cause(self) -> None:
        error = RuntimeError("inside")

        def fail(parameters: Any) -> Any:
            raise error

        with pytest.raises(ValueError, match="inside") as caught:
            fastnet.build(line, fail)
        assert caught.value.__cause__ is error


class TestScheduledOptimizers:
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
    def test_each_is_made_once_and_the_first_is_current(self, scheduler: Any, kinds: str) -> None:
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

    def test_one_scheduler_for_two_models(self) -> None:
        scheduler = EpochScheduler({1: "adam", 2: "sgd"})
        models = fastnet.build(lambda: [line(), line()], [scheduler, scheduler])
        for model in models:
            for epoch in (1, 2):
                (group,) = model.optimizer.get_current_value(epoch).param_groups
                assert group["params"][0] is model.weight
        assert scheduler.get_all_values() == ["adam", "sgd"]

    def test_two_of_one_kind_are_two(self) -> None:
        model = fastnet.build(line, RepeatScheduler(["adam", "adam"]))
        one, two = model.optimizer.get_all_values()
        assert one is not two


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

    def test_one_in_a_list_is_one(self) -> None:
        made = line()
        assert fastnet.build(lambda: [made], ["adam"]) is made

    def test_a_class_is_a_function(self) -> None:
        class Model(nn.Module):
            pass

        assert type(fastnet.build(Model, None)) is Model

    @pytest.mark.parametrize(
        ("kwargs", "counts"),
        [
            ({"optimizer_fn": "sgd"}, "1 optimizers"),
            ({"optimizer_fn": ["sgd"] * 3}, "3 optimizers"),
            ({"optimizer_fn": None, "weights_path": "w.pt"}, "1 weights paths"),
            ({"optimizer_fn": None, "model_name": "m"}, "1 names"),
        ],
    )
    def test_one_of_each_for_each(self, kwargs: Any, counts: str) -> None:
        with pytest.raises(AssertionError, match=f"2 models, .*{counts}"):
            fastnet.build(lambda: [line(), line()], **kwargs)

    @pytest.mark.parametrize(
        ("made", "name"),
        [(3, "int"), ("model", "str"), ([nn.Linear], "type"), (object(), "object")],
    )
    def test_what_is_no_model(self, made: Any, name: str) -> None:
        with pytest.raises(ValueError, match=rf"made {name}.* torch\.nn\.Module or a Keras model"):
            fastnet.build(lambda: made, None)

    @pytest.mark.parametrize("nothing", [None, [], ()])
    def test_no_model(self, nothing: Any) -> None:
        with pytest.raises(ValueError, match="model_fn made NoneType"):
            fastnet.build(lambda: nothing, "adam")


class TestNames:
    def test_made_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.modules["fastnet.network.build"], "_names", itertools.count())
        names = [fastnet.build(line, None).model_name for _ in range(2)]
        names += [model.model_name for model in fastnet.build(lambda: [line(), line()], None)]
        assert fastnet.build(line, None, model_name="mine").model_name == "mine"
        names.append(fastnet.build(line, None).model_name)
        assert names == ["model", "model1", "model2", "model3", "model4"]

    def test_given_in_a_list(self) -> None:
        assert fastnet.build(line, None, model_name=["mine"]).model_name == "mine"


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

    def test_missing(self, tmp_path: Path) -> None:
        path = tmp_path / "none.pt"
        with pytest.raises(ValueError, match=r"no weights file .*none\.pt.* Check the path"):
            fastnet.build(mlp, "sgd", weights_path=str(path))

    def test_of_another_model(self, saved: Any) -> None:
        path, _ = saved
        with pytest.raises(ValueError, match=r'(?s)weights.pt.* Linear: .*"weight".*"0\.weight"'):
            fastnet.build(line, "sgd", weights_path=path)


class TestAttributes:
    def test_all(self) -> None:
        model = fastnet.build(line, "sgd", None, "m", False)
        assert model.model_name == "m"
        assert model.fe_compiled is True
        assert model.mixed_precision is False
        assert isinstance(model.optimizer, torch.optim.SGD)
        assert not hasattr(model, "loss_name")
        assert not hasattr(model, "fe_input_spec")

    def test_what_is_saved_is_the_models_own(self) -> None:
        model = fastnet.build(mlp, "adam")
        run(TorchNetwork([ModelOp(model, "x", "y")]), {"x": torch.ones(1, 16)})
        assert set(model.state_dict()) == set(mlp().state_dict())
