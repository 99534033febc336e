"""An optimizer that a program assigns is used from the next entry on, or refused."""

from __future__ import annotations

import pytest
import torch

from fastnet.network import TorchNetwork
from fastnet.schedule import RepeatScheduler
from tests.network.programs import batches, built, is_free, mlp, run, supervised


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
