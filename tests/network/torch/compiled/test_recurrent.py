"""Recurrent models, whose forward replaces the list of its weights where it finds other ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fastnet import CompileOptions
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    Pair,
    built,
    captured,
    falls_back,
    network_of,
)


class Classifier(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], layers: int) -> None:
        super().__init__()
        # The inputs of the first layer require gradients, or they do not.
        self.project = nn.Linear(6, 6) if layers == 1 else nn.Identity()
        dropout = 0.4 if layers > 1 else 0.0
        self.rnn = kind(6, 8, num_layers=layers, batch_first=True, dropout=dropout)
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


@pytest.mark.parametrize(("kind", "layers"), [(nn.LSTM, 1), (nn.LSTM, 2), (nn.GRU, 1), (nn.RNN, 1)])
def test_training(kind: type[nn.RNNBase], layers: int) -> None:
    pair = Pair(lambda: Classifier(kind, layers), OPTIMIZERS["adam"])
    with pair.network("train", 1):
        for batch in data(4, 3):
            pair.step(batch)
    assert captured(pair.network) == 1
    pair.assert_same_weights()


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")
def test_a_layer_of_an_lstm_is_one_operation() -> None:
    counts = []

    def count(graph: Any, inputs: Any) -> Any:
        counts.append(len(graph.graph.nodes))
        return graph

    for length in (5, 20):
        network = network_of(built(lambda: Classifier(nn.LSTM, 1)), CompileOptions(count))
        with network("train", 1):
            network.run_step(data(1, length)[0])
        assert captured(network) == 1
    assert counts[0] == counts[1]


def test_inference() -> None:
    model = built(lambda: Classifier(nn.LSTM, 2))
    network = network_of(model)
    with network("infer", 1), torch.no_grad():
        for batch in data(4):
            torch.testing.assert_close(network.run_step(batch)["pred"], model(batch["x"]))
    assert captured(network) == 1


@pytest.mark.parametrize(
    ("kind", "layers", "length"), [(nn.GRU, 1, 33), (nn.GRU, 2, 17), (nn.RNN, 1, 33)]
)
def test_layer_of_many_cells_runs_eagerly_and_lstm_is_the_way_out(
    kind: type[nn.RNNBase], layers: int, length: int
) -> None:
    pair = Pair(lambda: Classifier(kind, layers), OPTIMIZERS["adam"])
    with falls_back(pair.network, f"runs over {length} steps"):
        for batch in data(3, length):
            pair.step(batch)
    pair.assert_same_weights()
    reason = str(pair.network.traces[0].fallback)
    assert f"{kind.__name__}(6, 8," in reason
    assert "use an nn.LSTM" in reason
    pair = Pair(lambda: Classifier(nn.LSTM, layers), OPTIMIZERS["adam"])
    with pair.network("train", 1):
        for batch in data(3, length):
            pair.step(batch)
    assert captured(pair.network) == 1


def test_layer_of_as_many_cells_as_allowed_is_captured() -> None:
    pair = Pair(lambda: Classifier(nn.GRU, 1), OPTIMIZERS["adam"])
    with pair.network("train", 1):
        for batch in data(3, 32):
            pair.step(batch)
    assert captured(pair.network) == 1
    pair.assert_same_weights()


def test_packed_sequence_of_many_steps_runs_eagerly() -> None:
    class Packed(Classifier):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            lengths = torch.full((x.shape[0],), x.shape[1])
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            scores: torch.Tensor = self.out(self.rnn(packed)[1][-1])
            return scores

    pair = Pair(lambda: Packed(nn.GRU, 1), OPTIMIZERS["adam"])
    with falls_back(pair.network, ""):
        for batch in data(3, 40):
            pair.step(batch)
    pair.assert_same_weights()
