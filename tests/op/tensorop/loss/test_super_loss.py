"""A loss that trusts what is easy more than what is hard."""

from __future__ import annotations

import pytest
import torch

from fastnet.op.tensorop.loss import L1_Loss, SuperLoss

STATE = {"mode": "train", "warmup": False}


def inner() -> L1_Loss:
    return L1_Loss(("p", "t"), "loss")


def test_the_loss_that_was_given_stays_as_it_is() -> None:
    loss = inner()
    op = SuperLoss(loss, output_confidence="c")
    assert loss.average_loss
    assert (op.inputs, op.outputs) == (["p", "t"], ["loss", "c"])


@pytest.mark.parametrize("built", [True, False])
def test_average_is_kept_for_each_mode(built: bool) -> None:
    op = SuperLoss(inner(), output_confidence="c")
    if built:
        op.build("torch", torch.device("cpu"))
    near, far = torch.zeros(2, 1), torch.full((2, 1), 4.0)
    op.forward([near, near], STATE)
    _, confidence = op.forward([far, near], STATE)
    assert (confidence < 1).all()
    # evaluation starts from its own first batch, where nothing is in excess
    _, confidence = op.forward([far, near], {"mode": "eval", "warmup": False})
    torch.testing.assert_close(confidence, torch.ones(2))


def test_first_batch_of_a_warmup_is_forgotten() -> None:
    op = SuperLoss(inner(), output_confidence="c")
    op.build("torch", torch.device("cpu"))
    near, far = torch.zeros(2, 1), torch.full((2, 1), 4.0)
    op.forward([near, near], {"mode": "train", "warmup": True})
    _, confidence = op.forward([far, near], STATE)
    torch.testing.assert_close(confidence, torch.ones(2))
