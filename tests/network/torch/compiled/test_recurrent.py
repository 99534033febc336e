"""Recurrent models, whose forward replaces the list of its weights where it finds other ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import fastnet
from fastnet import CompileOptions
from fastnet.network import TorchNetwork
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.torch.compiled.steps import OPTIMIZERS, QUICK, assert_same_weights, captured


class Classifier(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], layers: int) -> None:
        super().__init__()
        # The inputs of the first layer require gradients, or they do not.
        self.project = nn.Linear(6, 6) if layers == 1 else nn.Identity()
        self.rnn = kind(6, 8, num_layers=layers, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.rnn(self.project(x))
        scores: torch.Tensor = self.out(y[:, -1])
        return scores


def data(count: int, length: int = 5) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        {
            "x": torch.randn(4, length, 6, generator=generator),
            "y": torch.randint(3, (4,), generator=generator),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_training(kind: type[nn.RNNBase], layers: int) -> None:
    torch.manual_seed(0)
    model = fastnet.build(lambda: Classifier(kind, layers), OPTIMIZERS["adam"])
    torch.manual_seed(0)
    other = Classifier(kind, layers)
    optimizer = OPTIMIZERS["adam"](other.parameters())
    ops = [
        ModelOp(model, "x", "pred"),
        CrossEntropy(["pred", "y"], "loss", from_logits=True),
        UpdateOp(model, "loss"),
    ]
    network = TorchNetwork(ops, compile=QUICK)
    with network("train", 1):
        for batch in data(6):
            optimizer.zero_grad()
            loss = functional.cross_entropy(other(batch["x"]), batch["y"])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            torch.testing.assert_close(network.run_step(batch)["loss"], loss.detach())
    assert captured(network) == 1
    assert_same_weights(model, other)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")
def test_a_layer_of_an_lstm_is_one_operation() -> None:
    counts = []

    def count(graph: Any, inputs: Any) -> Any:
        counts.append(len(graph.graph.nodes))
        return graph

    for length in (5, 20):
        model = fastnet.build(lambda: Classifier(nn.LSTM, 1), OPTIMIZERS["sgd"])
        ops = [
            ModelOp(model, "x", "pred"),
            CrossEntropy(["pred", "y"], "loss", from_logits=True),
            UpdateOp(model, "loss"),
        ]
        network = TorchNetwork(ops, compile=CompileOptions(count))
        with network("train", 1):
            network.run_step(data(1, length)[0])
        assert captured(network) == 1
    assert counts[0] == counts[1]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_inference(kind: type[nn.RNNBase]) -> None:
    model = fastnet.build(lambda: Classifier(kind, 2), None)
    network = TorchNetwork([ModelOp(model, "x", "pred")], compile=QUICK)
    with network("infer", 1), torch.no_grad():
        for batch in data(4):
            torch.testing.assert_close(network.run_step(batch)["pred"], model(batch["x"]))
    assert captured(network) == 1
