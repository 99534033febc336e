"""Optimizers that a program makes or assigns: used from the next entry on, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fastnet
from fastnet.errors import WrongOptimizerError
from fastnet.network import TorchNetwork
from fastnet.op.tensorop.model import ModelOp
from fastnet.schedule import RepeatScheduler
from tests.network.programs import batches, built, is_free, line, mlp, run, sgd, supervised


@pytest.mark.parametrize("name", ["optimizer", "current_optimizer"])
def test_an_assigned_optimizer_is_used(name: str) -> None:
    model = built(mlp, "sgd")
    network = TorchNetwork(supervised(model))
    (batch,) = batches(1)
    run(network, batch, "train")
    adam = torch.optim.Adam(model.parameters())
    setattr(model, name, adam)
    run(network, batch, "train")
    assert model.current_optimizer is model.optimizer is adam
    assert adam.state


@pytest.mark.parametrize("name", ["optimizer", "current_optimizer"])
def test_anything_else_than_an_optimizer_is_an_error(name: str) -> None:
    model = built(mlp, "sgd", model_name="named")
    network = TorchNetwork(supervised(model))
    setattr(model, name, "adam")
    with pytest.raises(WrongOptimizerError, match=r"'named' was set to 'adam' of type str"):
        run(network, batches(1)[0], "train")
    assert is_free(network)


def test_current_optimizer_of_a_scheduled_one_is_refused() -> None:
    model = built(mlp, RepeatScheduler(["sgd", "adam"]), model_name="scheduled")
    network = TorchNetwork(supervised(model))
    (batch,) = batches(1)
    run(network, batch, "train")
    model.current_optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(ValueError, match=r"'scheduled'.*Adam.*RepeatScheduler.*model\.optimizer"):
        run(network, batch, "train")
    assert is_free(network)
    # One of the scheduler's own is replaced by that of the epoch, as by another network.
    model.current_optimizer = model.optimizer.get_all_values()[1]
    run(network, batch, "train", epoch=1)
    assert isinstance(model.current_optimizer, torch.optim.SGD)


def test_optimizers_that_were_both_assigned_are_refused_if_they_differ() -> None:
    model = built(mlp, "sgd", model_name="both")
    network = TorchNetwork(supervised(model))
    (batch,) = batches(1)
    model.current_optimizer = torch.optim.Adam(model.parameters())
    model.optimizer = torch.optim.Adagrad(model.parameters())
    with pytest.raises(ValueError, match=r"Both optimizer and current_optimizer of model 'both'"):
        run(network, batch, "train")
    model.optimizer = model.current_optimizer
    run(network, batch, "train")
    assert model.current_optimizer.state


def test_an_optimizer_of_another_model_is_an_error_that_names_both() -> None:
    first = fastnet.build(line, sgd(), model_name="first")
    with pytest.raises(WrongOptimizerError, match=r"'second'.*SGD.*of model 'first'"):
        fastnet.build(line, lambda _: sgd()(first.parameters()), model_name="second")


def test_optimizers_that_update_more_or_less_than_the_model() -> None:
    extra = nn.Parameter(torch.ones(1))
    first = fastnet.build(line, lambda own: sgd()([*own, extra]))
    part = fastnet.build(line, lambda own: sgd()([next(iter(own))]))
    shared: list[torch.optim.Optimizer] = []

    def both(own: Any) -> torch.optim.Optimizer:
        shared.append(sgd()([*own, *first.parameters()]))
        return shared[0]

    second = fastnet.build(line, both)
    third = fastnet.build(lambda: first, lambda _: shared[0])
    frozen = fastnet.build(lambda: line().requires_grad_(False), lambda _: sgd()([extra]))
    for model in (first, part, second, third, frozen):
        assert isinstance(model.current_optimizer, torch.optim.SGD)


def test_an_optimizer_of_another_model_that_is_assigned() -> None:
    first, second = (fastnet.build(line, sgd(), model_name=name) for name in ("first", "second"))
    network = fastnet.Network([ModelOp(second, "x", "y")])
    own, second.optimizer = second.optimizer, first.optimizer
    text = r"'second'.*SGD.*of model 'first'"
    with pytest.raises(WrongOptimizerError, match=text), network("train"):
        pass
    second.optimizer = own
    with network("train"):
        assert second.current_optimizer is own


def test_an_optimizer_of_another_model_that_is_assigned_within_a_context() -> None:
    first, second = (fastnet.build(mlp, sgd(), model_name=name) for name in ("first", "second"))
    network, (batch,) = TorchNetwork(supervised(second)), batches(1)
    with network("train"):
        network.run_step(batch)
        own, second.current_optimizer = second.current_optimizer, first.current_optimizer
        with pytest.raises(WrongOptimizerError, match=r"'second'.*SGD.*of model 'first'"):
            network.run_step(batch)
        second.current_optimizer = own
        network.run_step(batch)
