"""States of UpdateOps in the form that FastEstimator's RestoreWizard saves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("fastestimator")

import fastnet
from fastnet.integrations.fastestimator.restore_wizard import STATES
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp

SAVE, RESTORE = (STATES["UpdateOp"][name] for name in ("__getstate__", "__setstate__"))


def make(layers: Any, weight: str | None) -> Any:
    """Return a network of an encoder and a decoder that one optimizer updates."""
    encoder, decoder = layers
    fastnet.build(lambda: encoder, None, model_name="encoder")
    fastnet.build(
        lambda: decoder,
        lambda parameters: torch.optim.SGD([*encoder.parameters(), *parameters], 0.1),
        model_name="decoder",
    )
    return fastnet.Network(
        [
            ModelOp(encoder, "x", "z"),
            ModelOp(decoder, "z", "y"),
            LambdaOp(lambda y: (y**2).mean(), "y", "loss"),
            UpdateOp(decoder, "loss", merge_grad=3, weight=weight),
        ]
    )


@pytest.mark.parametrize("weight", [None, "count"])
@pytest.mark.parametrize("frozen", [False, True])
def test_window_is_restored(weight: str | None, frozen: bool) -> None:
    """Also of what only the optimizer holds, of parameters that were frozen, and of weights."""
    torch.manual_seed(0)
    first = [nn.Linear(2, 3), nn.Linear(3, 1)]
    second, by_hand = ([nn.Linear(2, 3), nn.Linear(3, 1)] for _ in range(2))
    for copies in (second, by_hand):
        for layer, source in zip(copies, first, strict=True):
            layer.load_state_dict(source.state_dict())
    batches = [{"x": torch.randn(4, 2), "count": count} for count in (1.0, 2.0, 5.0)]
    networks = [make(layers, weight) for layers in (first, second)]
    with networks[0]("train") as network:
        for batch in batches[:2]:
            network.run_step(batch)
    for layers in (first, second):
        layers[1].bias.requires_grad_(not frozen)
    RESTORE(networks[1].ops[-1], SAVE(networks[0].ops[-1]))
    with networks[1]("train") as network:
        network.run_step(batches[2])
    counts = [batch["count"] if weight else 1.0 for batch in batches]
    parameters = [one for layer in by_hand for one in layer.parameters()]
    for number, (batch, count) in enumerate(zip(batches, counts, strict=True)):
        by_hand[1].bias.requires_grad_(not (frozen and number == 2))
        loss = (by_hand[1](by_hand[0](batch["x"])) ** 2).mean()
        (loss * count / sum(counts)).backward()
    torch.optim.SGD(parameters, 0.1).step()
    for layer, other in zip(second, by_hand, strict=True):
        for own, expected in zip(layer.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(own, expected)
