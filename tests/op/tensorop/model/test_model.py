"""ModelOp: a model's outputs, those of its layers, and what it is fed with."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.programs import batches, built, line, mlp, run, run_all, sgd, twins
from tests.network.torch.compiled.steps import QUICK
from tests.op.tensorop.model.test_torch_update import by_hand


class Total(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(1)


class Layers(nn.Module):
    """(batch, 2) -> (batch, 1), with layers in layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
        self.head = nn.Linear(3, 1)
        self.total = Total()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.body(x)
        self.total(hidden)
        out: torch.Tensor = self.head(hidden)
        return out


def test_trainable_without_gradients() -> None:
    model = built(line, model_name="m")
    with pytest.raises(AssertionError, match=r"ModelOp.*'m'.*trainable=False"):
        ModelOp(model, "x", "y", gradients=False)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_arrays(kind: Any) -> None:
    model = built(line, None)
    model.to({np.float32: torch.float32, np.float64: torch.float64}[kind])
    x = np.ones((3, 2), kind)
    result = run(TorchNetwork([ModelOp(model, "x", "y")]), {"x": x})
    assert torch.equal(result["y"], model(torch.from_numpy(x)))


class TestIntermediateLayers:
    X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])

    def hidden(self, layer: Any, model: Any) -> Any:
        op = ModelOp(model, "x", ["y", "h"], intermediate_layers=layer)
        result = run(TorchNetwork([op]), {"x": self.X})
        assert torch.equal(result["y"], model(self.X))
        return result["h"]

    @pytest.mark.parametrize("wrap", [lambda model: model, nn.DataParallel], ids=["plain", "DP"])
    def test_inside_of_others(self, wrap: Any) -> None:
        """Names and places of a wrapped model are those of the model in it."""
        layers = Layers()
        model = fastnet.build(wrap(layers), "sgd")
        assert list(dict(layers.named_modules()))[2] == "body.0"
        for layer in ("body.0", 2):
            assert torch.equal(self.hidden(layer, model), layers.body[0](self.X))

    def test_a_layer_without_a_batch_axis_gets_one(self) -> None:
        """As in FastEstimator, which stacks what each device gave."""
        assert self.hidden("total", built(Layers, None)).shape == (1, 2)

    def test_a_layer_that_runs_twice_shows_its_last_output(self) -> None:
        class Twice(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.square = nn.Linear(2, 2)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                out: torch.Tensor = self.square(self.square(x))
                return out

        op = ModelOp(built(Twice, None), "x", ["y", "h"], intermediate_layers="square")
        result = run(TorchNetwork([op]), {"x": self.X})
        assert torch.equal(result["h"], result["y"])

    def test_hooks_hold_nothing_after_a_failure(self) -> None:
        model = built(Layers, None)
        watched: list[weakref.ref[Any]] = []
        model.body.register_forward_hook(
            lambda module, inputs, output: watched.append(weakref.ref(output))
        )
        op = ModelOp(model, "x", ["y", "h"], intermediate_layers=["body"])
        model.head.weight.data = torch.ones(1, 7)
        with pytest.raises(RuntimeError):
            run(TorchNetwork([op]), {"x": self.X})
        gc.collect()
        assert watched[-1]() is None
        model.head.weight.data = torch.ones(1, 3)
        assert torch.equal(run(TorchNetwork([op]), {"x": self.X})["h"], model.body(self.X))


class TestInputSpec:
    def test_of_a_tensor(self) -> None:
        model = built(mlp)
        (batch,) = batches(1)
        run(TorchNetwork([ModelOp(model, "x", "y")]), batch)
        spec = model.fe_input_spec
        assert tuple(spec.shape) == (8, 16)
        assert spec.dtype is torch.float32
        assert spec.device == torch.device("cpu")
        dummy = spec.get_dummy_input()
        assert torch.equal(dummy, torch.ones(8, 16))
        assert model(dummy).shape == (8, 4)

    @pytest.mark.parametrize("kind", [list, tuple, lambda pair: {"a": pair[0], "b": pair[1]}])
    def test_of_a_nest(self, kind: Any) -> None:
        class Nest(nn.Module):
            def forward(self, data: Any) -> torch.Tensor:
                return torch.ones(1)

        model = built(Nest, None)
        data = kind([torch.zeros(2, 3), torch.zeros(4, dtype=torch.int64)])
        run(TorchNetwork([ModelOp(model, "x", "y")]), {"x": data})
        dummy = model.fe_input_spec.get_dummy_input()
        first, second = dummy.values() if isinstance(dummy, dict) else dummy
        assert torch.equal(first, torch.ones(2, 3))
        assert torch.equal(second, torch.ones(4, dtype=torch.int64))
        assert model.fe_input_spec.device == torch.device("cpu")

    def test_is_made_anew_in_each_epoch(self) -> None:
        model = built(line, None)
        network = TorchNetwork([ModelOp(model, "x", "y")])
        run_all(network, [{"x": torch.ones(size, 2)} for size in (1, 2)], mode="infer")
        assert tuple(model.fe_input_spec.shape) == (1, 2)
        run(network, {"x": torch.ones(3, 2)}, epoch=2)
        assert tuple(model.fe_input_spec.shape) == (3, 2)


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


class Encoder(nn.Module):
    """(batch, 16) -> scores: inputs that are optional, and labels, as Hugging Face has them."""

    form: Any = Output

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 4)

    def forward(self, ids: Any = None, types: Any = None, mask: Any = None, **kwargs: Any) -> Any:
        assert types is None
        logits = self.head(ids * mask)
        return self.form(logits=logits, loss=cross_entropy(logits, kwargs["labels"]))


@pytest.mark.parametrize("compile", [False, QUICK])
@pytest.mark.parametrize("form", [Output, Plain, dict])
def test_a_model_of_named_inputs_and_outputs_trains(form: Any, compile: Any) -> None:
    model, twin = twins(Encoder)
    model.form = form
    built(model, sgd())
    # in another order than the arguments
    inputs = {"labels": "t", "mask": "mask", "ids": "x"}
    op = ModelOp(model, inputs, outputs={"logits": "y", "loss": "loss"})
    network = TorchNetwork([op, UpdateOp(model, "loss")], compile=compile)
    data = [{**batch, "mask": torch.arange(16.0) % 2} for batch in batches(4)]
    norms = by_hand(
        twin,
        [[batch] for batch in data],
        lambda batch: twin(batch["x"], mask=batch["mask"], labels=batch["t"]).loss,
    )
    assert len(run_all(network, data)) == len(norms)
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, other)
