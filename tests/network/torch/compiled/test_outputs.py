"""Captured steps whose results, or whose ops' own state, are more than new tensors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from fastnet import build
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, Normalize
from fastnet.op.tensorop.loss import CrossEntropy, SuperLoss
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.torch.compiled.steps import (
    QUICK,
    batches,
    built,
    captured,
    fallbacks,
    mlp,
    run_both,
)


class Scaled(nn.Module):
    """Returns its features, and a parameter and a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.temperature = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("count", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> Any:
        self.count += 1
        return self.layer(x), self.temperature, self.count, self.temperature.detach()


def contrast(features: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (features @ features.T * temperature.exp()).logsumexp(-1).mean()
    return loss


def scaled(compile: Any) -> TorchNetwork:
    keys = ["features", "temperature", "count", "again"]
    ops = [
        ModelOp(model := built(Scaled), "x", keys),
        LambdaOp(contrast, ["features", "temperature"], "loss"),
        UpdateOp(model, "loss"),
    ]
    return TorchNetwork(ops, compile=compile)


def test_parameter_that_is_an_output_is_returned_as_eagerly() -> None:
    """The result is the parameter, which shows the update of the step."""
    network = run_both(scaled, batches(5))
    assert captured(network) == 1
    (model,) = network.models
    with network("train"):
        for batch in batches(3):
            result = network.run_step(batch)
    assert result["temperature"].data_ptr() == model.temperature.data_ptr()
    assert not result["temperature"].requires_grad
    assert float(result["temperature"]) == float(model.temperature)


def test_part_of_a_parameter_is_captured_once_it_is_cloned() -> None:
    def make_with(read: Any) -> Any:
        class Partial(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(6, 3)

            def forward(self, x: torch.Tensor) -> Any:
                return self.layer(x), read(self.layer.weight)

        def make(compile: Any) -> TorchNetwork:
            model = built(Partial)
            loss = LambdaOp(functional.cross_entropy, ["pred", "y"], "loss")
            ops = [ModelOp(model, "x", ["pred", "row"]), loss, UpdateOp(model, "loss")]
            return TorchNetwork(ops, compile=compile)

        return make

    network = run_both(make_with(lambda weight: weight[0]), batches(3))
    assert "'row', which is a part of a parameter or a buffer" in fallbacks(network)[0]
    assert "clone it" in fallbacks(network)[0]
    assert captured(run_both(make_with(lambda weight: weight[0].clone()), batches(3))) == 1


def test_image_of_a_frozen_network_is_a_parameter() -> None:
    """As in style transfer: a parameter is the input of a network that is not trained."""
    torch.manual_seed(0)
    features = nn.Sequential(nn.Linear(6, 5), nn.Tanh()).requires_grad_(False)

    class Image(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image = nn.Parameter(torch.zeros(5, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.image

    def make(compile: Any) -> TorchNetwork:
        frozen = build(lambda: copy.deepcopy(features), None)
        model = built(Image)
        ops = [
            ModelOp(model, "x", "image"),
            ModelOp(frozen, "image", "own"),
            ModelOp(frozen, "x", "style"),
            LambdaOp(functional.mse_loss, ["own", "style"], "loss"),
            UpdateOp(model, "loss"),
        ]
        return TorchNetwork(ops, compile=compile)

    assert captured(run_both(make, batches(4))) == 1


def test_constants_of_normalize_are_inputs() -> None:
    def make(compile: Any) -> TorchNetwork:
        model = built(lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 3)))
        ops = [
            Normalize("x", "x", mean=(0.4, 0.5, 0.6), std=0.2, max_pixel_value=1.0),
            ModelOp(model, "x", "pred"),
            CrossEntropy(("pred", "y"), "loss", from_logits=True),
            UpdateOp(model, "loss"),
        ]
        return TorchNetwork(ops, compile=compile)

    images = [
        {"x": torch.rand(4, 3, 4, 4, generator=torch.Generator().manual_seed(seed)), "y": labels}
        for seed, labels in enumerate(torch.randint(0, 3, (6, 4)))
    ]

    def change(place: int, network: TorchNetwork) -> None:
        if place == 3:
            network.ops[0].mean = (0.1, 0.2, 0.3)

    assert captured(run_both(make, images)) == 1
    # A setting takes effect when the network is next entered.
    network, eager = make(QUICK), make(False)
    for place in range(2):
        for each in (network, eager):
            each.ops[0].std = 0.2 + 0.1 * place
        with network("train", 1), eager("train", 1):
            for image in images:
                torch.testing.assert_close(network.run_step(image), eager.run_step(image))
    assert fallbacks(network) == []


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_moving_average_of_a_loss_moves_in_compiled_steps(mode: Any) -> None:
    def make(compile: Any) -> TorchNetwork:
        model = built(mlp)
        loss = CrossEntropy(("pred", "y"), "loss", from_logits=True, average_loss=False)
        ops = [ModelOp(model, "x", "pred"), SuperLoss(loss), UpdateOp(model, "loss")]
        return TorchNetwork(ops, compile=compile)

    network, eager = make(QUICK), make(False)
    for _ in range(2):
        with network(mode, 1), eager(mode, 1):
            for batch in batches(4):
                torch.testing.assert_close(network.run_step(batch), eager.run_step(batch))
        states = [each.ops[1].state_dict()["averages"] for each in (network, eager)]
        assert states[0][mode] == pytest.approx(states[1][mode], rel=1e-5)
        # A loaded average continues.
        for each in (network, eager):
            each.ops[1].load_state_dict({"averages": {mode: 0.7}})
    assert fallbacks(network) == []


def test_moving_average_that_began_in_inference_mode_moves_on() -> None:
    loss = CrossEntropy(("pred", "y"), "loss", from_logits=True, average_loss=False)
    network = TorchNetwork([ModelOp(built(mlp), "x", "pred"), SuperLoss(loss)])
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        with mode(), network("eval", 1):
            network.run_step(batches(1)[0])


def test_precision_that_is_assigned_makes_another_program() -> None:
    def make(compile: Any) -> TorchNetwork:
        model = built(mlp)
        loss = CrossEntropy(("pred", "y"), "loss", from_logits=True)
        return TorchNetwork([ModelOp(model, "x", "pred"), loss], compile=compile)

    network, eager = make(QUICK), make(False)
    for precision in (False, "bfloat16", False):
        network.mixed_precision = eager.mixed_precision = precision
        with network("infer", 1), eager("infer", 1):
            for batch in batches(3):
                expected = eager.run_step(batch)["pred"]
                found = network.run_step(batch)["pred"]
                assert found.dtype == expected.dtype
                torch.testing.assert_close(found, expected)
