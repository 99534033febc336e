"""Models that use fastnet's names themselves: `build` takes nothing away from them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fastnet
from fastnet.backend import get_lr, load_model, save_model, set_lr
from fastnet.network import TorchNetwork
from fastnet.schedule import EpochScheduler
from tests.network.programs import (
    batches,
    line,
    mlp,
    run_all,
    same_weights,
    seeded,
    sgd,
    supervised,
)


class Learner(nn.Module):
    """A module with a layer, a table, a string, a method and a property under fastnet's names."""

    current_optimizer = "of the class"

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = mlp()
        self.register_buffer("fe_input_spec", torch.ones(1))
        self.fe_alone = nn.Parameter(torch.ones(4))
        self.loss_name = "cross entropy"

    @property
    def mixed_precision(self) -> str:
        return "never"

    def model_name(self) -> str:
        return "a learner"

    @property
    def fe_compiled(self) -> bool:
        raise RuntimeError("nobody may ask")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.optimizer(x) * self.fe_alone
        return y


class TestAModuleThatUsesAllOfThem:
    @pytest.fixture
    def learner(self) -> Learner:
        model: Learner = seeded(Learner)
        return model

    def test_keeps_them_and_is_trained(self, learner: Learner) -> None:
        inner, twin = learner.optimizer, copy.deepcopy(learner)
        own = set(learner.state_dict())
        assert fastnet.build(lambda: learner, sgd(), model_name="m") is learner
        data = batches(3)
        run_all(TorchNetwork(supervised(learner)), data)
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
        for batch in data:
            optimizer.zero_grad()
            nn.functional.cross_entropy(twin(batch["x"]), batch["t"]).backward()
            optimizer.step()
        assert same_weights(learner, twin)
        assert learner.optimizer is inner
        assert torch.equal(learner.get_buffer("fe_input_spec"), torch.ones(1))
        assert isinstance(learner.fe_alone, nn.Parameter)
        assert learner.loss_name == "cross entropy"
        assert learner.mixed_precision == "never"
        assert learner.model_name() == "a learner"
        assert learner.current_optimizer == "of the class"
        assert set(learner.state_dict()) == own

    def test_is_known_to_all_of_fastnet(self, learner: Learner, tmp_path: Path) -> None:
        fastnet.build(lambda: learner, None, model_name="n")
        with pytest.raises(ValueError, match="Model 'n' has no optimizer"):
            get_lr(learner)
        schedule = EpochScheduler({1: sgd(0.5), 2: "adam"})
        fastnet.build(lambda: learner, schedule, model_name="m")
        network = TorchNetwork(supervised(learner, merge_grad=2))
        assert "model 'm' with SGD" in str(network.explain())
        (optimizers,) = network.get_scheduled_items("train")[3:]
        set_lr(learner, 0.25)
        assert optimizers.get_current_value(1).param_groups[0]["lr"] == 0.25
        data = batches(4)
        run_all(network, data[:2])
        run_all(network, data[2:], epoch=2)
        assert get_lr(learner) == 0.001
        saved = save_model(learner, str(tmp_path), save_optimizer=True)
        assert Path(saved).name == "m.pt"
        assert set(torch.load(saved)) == set(learner.state_dict())
        moments = copy.deepcopy(optimizers.get_current_value(2).state_dict()["state"])
        run_all(network, data[2:], epoch=2)
        load_model(learner, saved, load_optimizer=True)
        again = optimizers.get_current_value(2).state_dict()["state"]
        assert torch.equal(again[0]["exp_avg"], moments[0]["exp_avg"])


class TestFreeNames:
    """They are written to as ever, for others read them."""

    def test_built_by_fastestimator_they_are_written_over(self) -> None:
        """What FastEstimator's own build leaves on a model."""
        model: Any = line()
        model.optimizer = model.current_optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model.model_name, model.mixed_precision, model.fe_compiled = "theirs", False, True
        fastnet.build(lambda: model, sgd(0.5), model_name="ours")
        assert model.model_name == "ours"
        assert model.optimizer.param_groups[0]["lr"] == 0.5


class TestModelsMadeBefore:
    """`build` also takes modules, although they are callable."""

    def test_one_whose_forward_needs_no_argument_is_not_run(self) -> None:
        class Source(nn.Module):
            def forward(self) -> nn.Module:
                raise AssertionError("it ran")

        made = Source()
        assert fastnet.build(made, None) is made

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ([line, mlp], r"model_fn is \[<function"),
            ((nn.Linear(1, 1), nn.Linear), r"model_fn is \(Linear"),
            ([], r"model_fn is \[\]"),
            (None, "model_fn is None"),
            ("sgd", "model_fn is 'sgd'"),
        ],
    )
    def test_what_is_neither(self, given: Any, text: str) -> None:
        with pytest.raises(TypeError, match=f"{text}.* Pass a function"):
            fastnet.build(given, "sgd")
