"""Updates and gradients in PyTorch, compared bit for bit with hand-written loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

import fastnet
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.programs import (
    Image,
    batches,
    built,
    line,
    mlp,
    regression,
    run,
    run_all,
    same_weights,
    sgd,
    twins,
    weights,
)


def test_gradients_of_other_leaves_are_those_of_a_hand_written_loop() -> None:
    model, twin = twins(line)
    x, by_hand = (torch.ones(3, 2, requires_grad=True) for _ in range(2))
    run(fastnet.Network(regression(built(model))), {"x": x}, "train")
    (twin(by_hand) ** 2).mean().backward()
    assert torch.equal(x.grad, by_hand.grad)


def test_an_update_at_once_takes_what_was_deferred_with_it() -> None:
    model, twin = twins(mlp)
    steps: list[int] = []

    class Counting(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            steps.append(1)
            super().step()

    network = fastnet.Network(
        [
            ModelOp(built(model, lambda params: Counting(params, lr=0.1)), "x", "y"),
            CrossEntropy(("y", "t"), "loss", from_logits=True),
            LambdaOp(lambda y: y.abs().mean(), "y", "size"),
            UpdateOp(model, "loss", defer=True),
            UpdateOp(model, "size"),
            LambdaOp(lambda y: y + 1, "y", "z"),
        ]
    )
    (batch,) = batches(1)
    run(network, batch, "train")
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    y = twin(batch["x"])
    functional.cross_entropy(y, batch["t"]).backward(retain_graph=True)
    y.abs().mean().backward()
    optimizer.step()
    assert same_weights(model, twin)
    assert len(steps) == 1


def test_given_gradients_may_be_none_and_are_not_changed() -> None:
    model = built(line, sgd(1.0))
    before = weights(model)
    given = [torch.ones(1, 2), None]
    network = fastnet.Network([UpdateOp(model, "loss", gradients="given", defer=False)])
    run_all(network, [{"given": given}] * 2)
    assert torch.equal(model.weight, before["weight"] - 1 - 1)
    assert torch.equal(model.bias, before["bias"])
    assert torch.equal(given[0], torch.ones(1, 2))


def test_gradients_flow_through_a_model_that_is_not_trained() -> None:
    """As in an adversarial attack: the batch is differentiated, the model stays."""
    model = built(Image, None)
    model.requires_grad_(False)

    def against_the_gradient(x: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * torch.autograd.grad(loss, x)[0].sign()

    network = fastnet.Network(
        [
            LambdaOp(lambda x: x.clone().requires_grad_(), "x", "x"),
            ModelOp(model, "x", "y", trainable=False),
            CrossEntropy(("y", "t"), "loss", from_logits=True),
            LambdaOp(against_the_gradient, ["x", "loss"], "x_attack"),
        ]
    )
    (batch,) = batches(1, (1, 8, 8))
    with pytest.raises(RuntimeError):
        run(network, batch, "train")  # nothing in it says that it takes gradients

    class Attack(LambdaOp):
        retain = False

        def fe_retain_graph(self, retain: bool | None = None) -> bool | None:
            if retain is not None:
                self.retain = retain
            return self.retain

    network.ops[-1] = Attack(against_the_gradient, ["x", "loss"], "x_attack")
    result = run(network, batch, "train")
    assert not torch.equal(result["x_attack"], batch["x"])
    assert result["x_attack"].grad_fn is None
