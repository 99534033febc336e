"""Keys of losses, and what those remember that have a state or prepare their weights."""

from __future__ import annotations

import pytest
import torch

from fastnet.op.tensorop.loss import (
    CrossEntropy,
    DiceLoss,
    L2Regularizaton,
    LossOp,
    MeanSquaredError,
)


@pytest.mark.parametrize("cls", [LossOp, CrossEntropy, MeanSquaredError])
def test_keys(cls: type[LossOp]) -> None:
    op = cls(inputs=("y_pred", "y"), outputs="loss")
    assert (op.pred_key, op.true_key) == ("y_pred", "y")
    assert (op.pred_key_idx, op.true_key_idx) == (0, 1)
    assert (op.in_list, op.out_list) == (True, False)


def test_one_with_its_keys_the_other_way_round() -> None:
    class Turned(LossOp):
        @property
        def true_key_idx(self) -> int:
            return 0

        @property
        def pred_key_idx(self) -> int:
            return 1

    op = Turned(inputs=["y", "y_pred"], outputs="loss")
    assert (op.pred_key, op.true_key) == ("y_pred", "y")


def test_weights_of_dice_loss_follow_the_channels() -> None:
    """What is kept for later steps is not taken for masks of more channels, or by another build."""
    op = DiceLoss(("p", "t"), "loss", channel_weights={1: 3.0}, channel_average=False)
    for _ in range(2):
        op.build("torch", torch.device("cpu"))
        for channels in (2, 4, 2):
            masks = torch.ones(2, channels, 4, 4)
            wanted = torch.ones(channels)
            wanted[1] = 3.0
            torch.testing.assert_close(op.forward([masks, masks], {}), -wanted)


def test_weights_of_dice_loss_made_in_inference_mode_have_gradients() -> None:
    op = DiceLoss(("p", "t"), "loss", channel_weights={0: 2.0})
    op.build("torch", torch.device("cpu"))
    truth = torch.ones(1, 2, 3, 3)
    with torch.inference_mode():
        op.forward([truth, truth], {})
    predicted = torch.full((1, 2, 3, 3), 0.5, requires_grad=True)
    op.forward([predicted, truth], {}).backward()
    # of -w * 2 * sum(p) / (sum(p) + 9), averaged over two channels, by each p
    slope = -2 * 9 / 13.5**2 / 2
    assert predicted.grad is not None
    torch.testing.assert_close(predicted.grad[0, :, 0, 0], torch.tensor([2 * slope, slope]))


def test_regularized_weights_that_come_between_steps() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False))
    op = L2Regularizaton("a", "y", model=model, beta=0.5)
    state = {"mode": "train"}
    for weight in (3.0, 5.0):
        torch.nn.init.constant_(model[0].weight, weight)
        loss = op.forward(torch.tensor(1.0), state)
        assert loss.item() == 1 + 0.5 * weight**2
        model[0] = torch.nn.Linear(2, 1, bias=False)
