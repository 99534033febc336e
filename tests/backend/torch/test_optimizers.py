"""Learning rates of torch optimizers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fastnet
from fastnet.backend import get_lr, set_lr
from tests.network.programs import batches, line, mlp, same_weights, supervised, twins


def build(optimizer: Any, make: Any = line) -> Any:
    return fastnet.build(make, optimizer, model_name="net")


def groups(parameters: Any) -> torch.optim.Optimizer:
    """Return an optimizer of two groups."""
    first, second = parameters
    return torch.optim.AdamW(
        [{"params": [first], "lr": 0.5}, {"params": [second], "lr": 0.25, "weight_decay": 0.5}]
    )


class TestRead:
    @pytest.mark.parametrize(
        ("name", "rate"), [("sgd", 0.01), ("adam", 0.001), ("rmsprop", 0.01), ("adadelta", 1.0)]
    )
    def test_of_a_name(self, name: str, rate: float) -> None:
        assert get_lr(build(name)) == rate

    def test_of_a_tensor(self) -> None:
        model = build(lambda parameters: torch.optim.Adam(parameters, torch.tensor(0.5)))
        assert type(get_lr(model)) is float
        assert get_lr(model) == 0.5


class TestSet:
    def test_all_groups(self) -> None:
        model = build(groups)
        set_lr(model, 2)
        assert [group["lr"] for group in model.current_optimizer.param_groups] == [2.0, 2.0]
        decays = [group["weight_decay"] for group in model.current_optimizer.param_groups]
        assert decays == [0.01, 0.5]
        set_lr(model, 0.5, weight_decay=0.125)
        decays = [group["weight_decay"] for group in model.current_optimizer.param_groups]
        assert decays == [0.125, 0.125]

    def test_a_tensor_stays_the_same(self) -> None:
        rate = torch.tensor(0.5)
        model = build(lambda parameters: torch.optim.Adam(parameters, rate))
        set_lr(model, 0.25)
        assert model.current_optimizer.param_groups[0]["lr"] is rate
        assert rate == 0.25

    def test_counts_from_the_next_step_on(self) -> None:
        model, twin = twins(mlp)
        build(lambda parameters: torch.optim.SGD(parameters, 0.1), lambda: model)
        network = fastnet.Network(supervised(model))
        with network(mode="train", epoch=1):
            for batch, rate, decay in zip(
                batches(4), (0.1, 0.5, 0.0, 2.0), (0.0, 0.25, 0.5, 0.0), strict=True
            ):
                set_lr(model, rate, weight_decay=decay)
                network.run_step(batch)
                optimizer = torch.optim.SGD(twin.parameters(), rate, weight_decay=decay)
                optimizer.zero_grad()
                nn.functional.cross_entropy(twin(batch["x"]), batch["t"]).backward()
                optimizer.step()
                assert same_weights(model, twin)

    def test_no_weight_decay(self) -> None:
        model = build(lambda parameters: torch.optim.Rprop(parameters, 0.5))
        with pytest.raises(ValueError, match=r"'net'.*Rprop"):
            set_lr(model, 0.1, weight_decay=0.1)
        assert get_lr(model) == 0.5


@pytest.mark.parametrize(
    ("name", "call"), [("get_lr", get_lr), ("set_lr", lambda model: set_lr(model, 0.1))]
)
def test_errors(name: str, call: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name}.*'net'"):
        call(build(None))
    with pytest.raises(AssertionError, match=f"{name}.*fastnet.build.*Linear"):
        call(line())
    with pytest.raises(ValueError, match="int"):
        call(3)
