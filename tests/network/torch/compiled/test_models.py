"""Ordinary models are compiled by Inductor, and verified without false alarms."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import fastnet
from bench.architectures import (
    LSTM,
    ResidualBlock,
    classifier,
    language_model,
    text_classifier,
)
from bench.verification import find_alarms
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.torch.compiled.steps import OPTIMIZERS, QUICK, captured


def _residual() -> nn.Module:
    first = nn.Conv2d(3, 8, 3, 2, bias=False), nn.BatchNorm2d(8), nn.ReLU()
    last = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    return nn.Sequential(*first, ResidualBlock(8, 8, 1), *last)


SMALL = {
    "ResNet": classifier(_residual, 8, 16),
    "GPT with dropout": language_model(16, 1, 0.1),
    "LSTM": text_classifier(partial(LSTM, 1)),
}


@pytest.mark.parametrize("name", SMALL)
def test_no_false_alarms(name: str) -> None:
    found = find_alarms(SMALL[name], "SGD" if name == "ResNet" else "Adam")
    assert found["alarms"] == found["reasons"] == []


def _bert() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=3,
    )
    return transformers.BertForSequenceClassification(config)


def _gpt() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=8, num_labels=3, pad_token_id=0
    )
    return transformers.GPT2ForSequenceClassification(config)


class Logits(nn.Module):
    """Returns the logits of a model of transformers."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.model = make()

    def forward(self, x: torch.Tensor) -> Any:
        return self.model(input_ids=x).logits


@pytest.mark.parametrize("make", [_bert, _gpt])
def test_models_of_transformers_stay_compiled(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = fastnet.build(partial(Logits, make), OPTIMIZERS["adam"])
    other = copy.deepcopy(model)
    optimizer = OPTIMIZERS["adam"](other.parameters())
    network = TorchNetwork(
        [
            ModelOp(model, "x", "pred"),
            LambdaOp(functional.cross_entropy, ["pred", "y"], "loss"),
            UpdateOp(model, "loss"),
        ],
        compile=QUICK,
    )
    with network("train", 1):
        for step in range(4):
            batch = {"x": torch.randint(1, 20, (4, 6)), "y": torch.randint(0, 3, (4,))}
            torch.manual_seed(step)
            loss = network.run_step(batch)["loss"]
            torch.manual_seed(step)
            optimizer.zero_grad()
            expected = functional.cross_entropy(other.train()(batch["x"]), batch["y"])
            expected.backward()
            optimizer.step()
            torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-6)
    assert captured(network) == 1
