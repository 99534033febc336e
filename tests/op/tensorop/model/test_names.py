"""Models whose inputs and outputs go by name, in torch."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.programs import built, run, run_all, same_weights, sgd, twins
from tests.network.torch.compiled.steps import QUICK
from tests.op.tensorop.model.named_models import Encoder, Output, Pair, Plain


def words(count: int) -> list[dict[str, Any]]:
    source = torch.Generator().manual_seed(0)
    return [
        {
            "ids": torch.randint(0, 20, (8, 5), generator=source),
            "mask": (torch.rand(8, 5, generator=source) > 0.2).float().clamp(min=0.1),
            "t": torch.randint(0, 4, (8,), generator=source),
        }
        for _ in range(count)
    ]


def network_of(model: Any, compile: Any = False) -> TorchNetwork:
    return TorchNetwork(
        [
            ModelOp(
                model,
                # in another order than the arguments
                inputs={"labels": "t", "attention_mask": "mask", "input_ids": "ids"},
                outputs={"logits": "y", "loss": "loss"},
            ),
            UpdateOp(model, "loss"),
        ],
        compile=compile,
    )


@pytest.mark.parametrize("compile", [False, QUICK])
@pytest.mark.parametrize("form", [Output, Plain, dict])
def test_training_is_the_loop_by_hand(form: Any, compile: Any) -> None:
    model, twin = twins(Encoder)
    model.form = twin.form = form
    built(model, sgd())
    network = network_of(model, compile)
    data = words(4)
    results = run_all(network, data)
    optimizer = sgd()(twin.parameters())
    for batch, result in zip(data, results, strict=True):
        twin_result = twin(input_ids=batch["ids"], attention_mask=batch["mask"], labels=batch["t"])
        loss = twin_result["loss"] if form is dict else twin_result.loss
        torch.testing.assert_close(result["loss"], loss.detach())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, other)


def told_of(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


@pytest.mark.parametrize("form", [Output, Plain, dict, Pair])
def test_an_op_that_cannot_read_what_has_parts(form: Any) -> None:
    model = built(Encoder, None, model_name="m")
    model.form = form
    inputs = {"input_ids": "ids", "attention_mask": "mask"}
    (batch,) = words(1)
    fail = LambdaOp(lambda y: y.no_such_thing, "y", "z")
    with pytest.raises(AttributeError) as caught:
        run(TorchNetwork([ModelOp(model, inputs, "y", mode="infer"), fail]), batch)
    names = {Pair: ["logits", "hidden"], Plain: ["logits", "loss"]}.get(form, ["logits"])
    note = (
        f"The value of 'y' is of type {form.__name__}, as model 'm' returned it, with the "
        f"parts {names}. ModelOp(..., outputs={{{names[0]!r}: 'y'}}) selects one of them."
    )
    assert note in told_of(caught.value)
    taken = ModelOp(model, inputs, {"logits": "y"}, mode="infer")
    with pytest.raises(AttributeError) as caught:
        run(TorchNetwork([taken, fail]), batch)
    assert "returned it" not in told_of(caught.value)


def test_places_in_and_names_out() -> None:
    model = built(Encoder, None)
    model.form = dict
    network = TorchNetwork(
        [
            LambdaOp(lambda ids: None, "ids", "none"),
            ModelOp(model, ["ids", "none", "mask"], {"logits": "y"}),
        ]
    )
    (batch,) = words(1)
    expected = model(batch["ids"], None, batch["mask"])["logits"]
    assert torch.equal(run(network, batch)["y"], expected.detach())


def test_copies_and_written_keys() -> None:
    model = built(Encoder, sgd())
    network = network_of(model)
    data = words(2)
    run_all(network, data)
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        run_all(other, data)
        assert not same_weights(model, other.models[0])
    network.ops[0].inputs[2] = "words"
    for batch in data:
        batch["words"] = batch.pop("ids")
    run_all(network, data)
    assert same_weights(model, other.models[0])


def test_arguments_that_a_function_does_not_take_or_needs() -> None:
    class Strict(nn.Module):
        def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
            return input_ids - (attention_mask or 0)

    model = built(Strict, None, model_name="m")
    with pytest.raises(ValueError, match=r"'m'.*'input_id'.*Did you mean 'input_ids'"):
        ModelOp(model, {"input_id": "ids"}, "y")
    with pytest.raises(ValueError, match=r"'m'.*'attention_mask'.*needs 'input_ids', too"):
        ModelOp(model, {"attention_mask": "ids"}, "y")
    network = TorchNetwork([ModelOp(model, {"attention_mask": "b", "input_ids": "a"}, "y")])
    assert run(network, {"a": torch.tensor(3), "b": torch.tensor(1)})["y"] == 2


@pytest.mark.parametrize(
    ("form", "told"),
    [
        (dict, "a dict, which has ['logits']. Did you mean 'logits'?"),
        (Plain, "a Plain, which has ['logits', 'loss']. Did you mean 'logits'?"),
        (None, "a Tensor, whose values have no names."),
    ],
)
def test_names_that_are_not_returned(form: Any, told: str) -> None:
    model = built(Encoder, None, model_name="m")
    model.form = form or (lambda logits: logits)
    op = ModelOp(model, {"input_ids": "ids", "attention_mask": "mask"}, {"logit": "y"})
    with pytest.raises(KeyError) as caught:
        run(TorchNetwork([op]), words(1)[0])
    assert str(caught.value).partition("\n")[0] == (
        f"ModelOp of 'm' takes 'logit' of what its model returns, {told}"
    )


def test_names_and_intermediate_layers() -> None:
    model = built(Encoder, None, model_name="m")
    with pytest.raises(ValueError, match=r"ModelOp.*'m'.*'head'.*as a list"):
        ModelOp(model, {"input_ids": "ids"}, {"logits": "y"}, intermediate_layers="head")
    op = ModelOp(
        model,
        {"input_ids": "ids", "attention_mask": "mask"},
        ["logits", "hidden"],
        intermediate_layers="head",
    )
    (batch,) = words(1)
    result = run(TorchNetwork([op]), batch)
    assert torch.equal(result["hidden"], result["logits"])


def test_a_count_of_keys_that_was_changed() -> None:
    model = built(Encoder, None, model_name="m")
    op = ModelOp(model, {"input_ids": "ids", "attention_mask": "mask"}, "y")
    op.inputs.pop()
    with pytest.raises(ValueError, match=r"ModelOp.*'m'.*'input_ids'.*'attention_mask'.*'ids'"):
        TorchNetwork([op])
