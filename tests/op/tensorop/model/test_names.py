"""Models whose inputs and outputs go by name, in torch."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.programs import built, run, run_all, sgd, twins
from tests.network.torch.compiled.steps import QUICK


@dataclasses.dataclass
class Output(OrderedDict):  # type: ignore[type-arg]
    """The output of Hugging Face models: a dict without None values, with attribute access."""

    loss: Any = None
    logits: Any = None
    hidden_states: Any = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                OrderedDict.__setitem__(self, field.name, value)


@dataclasses.dataclass
class Plain:
    logits: Any
    loss: Any = None


Pair = namedtuple("Pair", ["logits", "hidden"])


class Encoder(nn.Module):
    """(batch, length) of words -> scores, as Hugging Face has it."""

    form: Any = Output

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 6)
        self.head = nn.Linear(6, 4)

    def forward(
        self,
        input_ids: Any = None,
        token_type_ids: Any = None,
        attention_mask: Any = None,
        **kwargs: Any,
    ) -> Any:
        assert token_type_ids is None
        hidden = self.table(input_ids) * attention_mask[..., None]
        logits = self.head(hidden.sum(1) / attention_mask.sum(1, keepdim=True))
        if "labels" in kwargs:
            return self.form(logits=logits, loss=cross_entropy(logits, kwargs["labels"]))
        if self.form is Pair:
            return Pair(logits, hidden)
        return self.form(logits=logits)


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


def test_arguments_that_a_function_does_not_take_or_needs() -> None:
    class Strict(nn.Module):
        def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
            return input_ids - (attention_mask or 0)

    model = built(Strict, None, model_name="m")
    with pytest.raises(ValueError, match=r"'m'.*'input_id'.*Did you mean 'input_ids'"):
        ModelOp(model, {"input_id": "ids"}, "y")
    with pytest.raises(ValueError, match=r"'m'.*'attention_mask'.*missing.*'input_ids'"):
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


def test_names_with_intermediate_layers_are_refused() -> None:
    model = built(Encoder, None, model_name="m")
    with pytest.raises(ValueError, match=r"ModelOp.*'m'.*'head'.*as a list"):
        ModelOp(model, {"input_ids": "ids"}, {"logits": "y"}, intermediate_layers="head")


def test_a_count_of_keys_that_was_changed() -> None:
    model = built(Encoder, None, model_name="m")
    op = ModelOp(model, {"input_ids": "ids", "attention_mask": "mask"}, "y")
    op.inputs.pop()
    with pytest.raises(ValueError, match=r"ModelOp.*'m'.*'input_ids'.*'attention_mask'.*'ids'"):
        TorchNetwork([op])
