"""An optimizer must update the model that it is built for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fastnet
from fastnet.errors import WrongOptimizerError
from fastnet.op.tensorop.model import ModelOp

pytestmark = pytest.mark.fast


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def test_an_optimizer_of_another_model_is_an_error_that_names_both() -> None:
    first = fastnet.build(lambda: nn.Linear(2, 1), sgd, model_name="first")
    with pytest.raises(WrongOptimizerError, match=r"'second'.*SGD.*of model 'first'"):
        fastnet.build(
            lambda: nn.Linear(2, 1), lambda _: sgd(first.parameters()), model_name="second"
        )


def test_optimizers_that_update_more_or_less_than_the_model() -> None:
    extra = nn.Parameter(torch.ones(1))
    first = fastnet.build(lambda: nn.Linear(2, 1), lambda own: sgd([*own, extra]))
    part = fastnet.build(lambda: nn.Linear(2, 1), lambda own: sgd([next(iter(own))]))
    shared: list[torch.optim.Optimizer] = []

    def both(own: Any) -> torch.optim.Optimizer:
        shared.append(sgd([*own, *first.parameters()]))
        return shared[0]

    second = fastnet.build(lambda: nn.Linear(2, 1), both)
    third = fastnet.build(lambda: first, lambda _: shared[0])
    frozen = fastnet.build(lambda: nn.Linear(2, 1).requires_grad_(False), lambda _: sgd([extra]))
    for model in (first, part, second, third, frozen):
        assert isinstance(model.current_optimizer, torch.optim.SGD)


def test_an_optimizer_of_another_model_that_is_assigned() -> None:
    first, second = (
        fastnet.build(lambda: nn.Linear(2, 1), sgd, model_name=name) for name in ("first", "second")
    )
    network = fastnet.Network([ModelOp(second, "x", "y")])
    own, second.optimizer = second.optimizer, first.optimizer
    text = r"'second'.*SGD.*of model 'first'"
    with pytest.raises(WrongOptimizerError, match=text), network("train"):
        pass
    second.optimizer = own
    with network("train"):
        assert second.current_optimizer is own
