"""Models of Hugging Face's transformers, small ones made from their config classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fastnet.network import TorchNetwork
from fastnet.op.tensorop.model import ModelOp
from tests.network.programs import built, run_all, sgd, twins
from tests.network.torch.compiled.steps import QUICK
from tests.op.tensorop.model.test_names import network_of

pytestmark = pytest.mark.slow  # to import transformers takes seconds
SMALL = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers")


def sentences(count: int) -> list[dict[str, Any]]:
    source = torch.Generator().manual_seed(0)
    return [
        {
            "ids": torch.randint(0, 20, (8, 5), generator=source),
            "mask": (torch.arange(5) < torch.randint(1, 6, (8, 1), generator=source)).long(),
            "t": torch.randint(0, 4, (8,), generator=source),
        }
        for _ in range(count)
    ]


def classifier(transformers: Any) -> nn.Module:
    config = transformers.BertConfig(**SMALL, intermediate_size=16, num_labels=4)
    model: nn.Module = transformers.BertForSequenceClassification(config)
    return model


def classified_by_hand(twin: Any, data: list[dict[str, Any]]) -> list[Any]:
    """Train with the model's own loss; give what it returned in each step."""
    optimizer = sgd()(twin.parameters())
    twin.train()
    seen = []
    for batch in data:
        output = twin(input_ids=batch["ids"], attention_mask=batch["mask"], labels=batch["t"])
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(output)
    return seen


@pytest.mark.parametrize("compile", [False, QUICK], ids=["eager", "compiled"])
def test_training_with_the_models_own_loss(transformers: Any, compile: Any) -> None:
    """With the dropout that the model has by itself; eagerly it is equal bit for bit."""
    model, twin = twins(lambda: classifier(transformers))
    network, data = network_of(built(model, sgd()), compile), sentences(5)
    exact = {} if compile else {"rtol": 0, "atol": 0}
    torch.manual_seed(1)
    results = run_all(network, data)
    torch.manual_seed(1)
    for result, output in zip(results, classified_by_hand(twin, data), strict=True):
        torch.testing.assert_close(result["loss"], output.loss.detach(), **exact)
        torch.testing.assert_close(result["y"], output.logits.detach(), **exact)
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, other, **exact)
    if compile:
        assert [trace.fallback for trace in network.traces] == [None]
        return
    (result,) = run_all(network, data[:1], mode="eval")
    with torch.no_grad():
        output = twin.eval()(data[0]["ids"], data[0]["mask"], labels=data[0]["t"])
    assert torch.equal(result["loss"], output.loss)


def test_compiled_steps_see_what_is_asked_of_the_model(transformers: Any) -> None:
    """Which it keeps in a context variable while it runs, and in its configuration."""
    model, twin = twins(lambda: classifier(transformers))
    network = TorchNetwork(
        [ModelOp(built(model, None), {"input_ids": "ids"}, {"logits": "y"})], compile=QUICK
    )
    (batch,) = sentences(1)
    with network("infer", 1):
        for _ in range(3):
            network.run_step(batch)
        assert [trace.fallback for trace in network.traces] == [None]
        model.config.output_hidden_states = True
        result = network.run_step(batch)
    with torch.no_grad():
        torch.testing.assert_close(result["y"], twin.eval()(batch["ids"]).logits)
