"""ModelOp: a model's outputs, those of its layers, and what it is fed with."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fastnet
from fastnet.errors import MissingKeyError
from fastnet.network import TorchNetwork
from fastnet.op.tensorop.model import ModelOp
from tests.network.programs import batches, built, line, mlp, run, run_all


class Returning(nn.Module):
    """Gives its line's output in some form."""

    def __init__(self, returns: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.line = nn.Linear(2, 1)
        self.returns = returns

    def forward(self, x: torch.Tensor) -> Any:
        return self.returns(self.line(x))


class Layers(nn.Module):
    """(batch, 2) -> (batch, 1), with layers of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
        self.head = nn.Linear(3, 1)
        self.idle = nn.Linear(1, 1)
        self.total = Total()
        self.both = Both()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.body(x)
        self.both(self.total(hidden))
        out: torch.Tensor = self.head(hidden)
        return out


class Total(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(1)


class Both(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, -x


class TestMaking:
    def test_trainable_without_gradients(self) -> None:
        model = built(line, model_name="m")
        with pytest.raises(AssertionError, match=r"ModelOp.*'m'.*trainable=False"):
            ModelOp(model, "x", "y", gradients=False)


class TestInputs:
    class Pair(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return 10 * a + b

    class OnePair(nn.Module):
        def forward(self, pair: list[torch.Tensor]) -> torch.Tensor:
            return 10 * pair[0] + pair[1]

    class Optional(nn.Module):
        def forward(self, a: torch.Tensor, scale: float = 3.0) -> torch.Tensor:
            return a * scale

    class Any(nn.Module):
        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return torch.tensor(float(len(inputs)))

    def result(self, cls: Any, inputs: Any) -> Any:
        network = TorchNetwork([ModelOp(built(cls, None), inputs, "y")])
        return run(network, {"a": torch.tensor(1.0), "b": torch.tensor(2.0)})["y"]

    def test_of_each_signature(self) -> None:
        for cls, inputs, expected in (
            (self.Pair, ["a", "b"], 12),
            (self.Pair, ("b", "a"), 21),
            (self.OnePair, ["a", "b"], 12),
            (self.Optional, "b", 6),
            (self.Optional, ["a", "b"], 2),
            # as in FastEstimator, `*inputs` is one parameter, and gets the list
            (self.Any, ["a", "b"], 1),
        ):
            assert self.result(cls, inputs) == expected

    @pytest.mark.parametrize("kind", [np.float32, np.float64])
    def test_arrays(self, kind: Any) -> None:
        model = built(line, None)
        model.to({np.float32: torch.float32, np.float64: torch.float64}[kind])
        x = np.ones((3, 2), kind)
        result = run(TorchNetwork([ModelOp(model, "x", "y")]), {"x": x})
        assert torch.equal(result["y"], model(torch.from_numpy(x)))


class TestIntermediateLayers:
    X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])

    def hidden(self, layers: Any, model: Any = None) -> Any:
        model = built(Layers, None) if model is None else model
        op = ModelOp(model, "x", ["y", "h"], intermediate_layers=layers)
        result = run(TorchNetwork([op]), {"x": self.X})
        assert torch.equal(result["y"], model(self.X))
        return result["h"]

    @pytest.mark.parametrize("layers", ["body.0", ["body.0"], ("body.0",), 2, [2], -6], ids=str)
    def test_by_name_and_by_place(self, layers: Any) -> None:
        model = built(Layers, None)
        assert list(dict(model.named_modules()))[2] == "body.0"
        assert torch.equal(self.hidden(layers, model), model.body[0](self.X))

    def test_a_layer_without_a_batch_axis_gets_one(self) -> None:
        """As in FastEstimator, which stacks what each device gave."""
        assert self.hidden("total").shape == (1, 2)

    @pytest.mark.parametrize(
        ("returns", "keys"),
        [
            (lambda y: {"z": 2 * y, "w": -y, "y": y}, ["y", "z"]),
            (lambda y: [y], ["y"]),
        ],
    )
    def test_a_model_s_own_outputs_by_name(self, returns: Any, keys: list[str]) -> None:
        op = ModelOp(built(Returning(returns), None), "x", [*keys, "h"], intermediate_layers="line")
        result = run(TorchNetwork([op]), {"x": self.X})
        assert torch.equal(result["y"], result["h"])
        assert "z" not in keys or torch.equal(result["z"], 2 * result["h"])

    @pytest.mark.parametrize(
        ("returns", "keys", "text"),
        [
            (
                lambda y: {"a": y},
                ["y"],
                "from the dict that its model returned, but that has the keys ['a']",
            ),
            (
                lambda y: (y, y),
                ["y"],
                "has 1 output besides its last 1, but its model returned 2 values",
            ),
            (lambda y: y, ["y", "z"], "but its model returned Tensor."),
        ],
    )
    def test_a_model_that_returns_other_values(
        self, returns: Any, keys: list[str], text: str
    ) -> None:
        op = ModelOp(built(Returning(returns), None), "x", [*keys, "h"], intermediate_layers="line")
        with pytest.raises((ValueError, TypeError)) as caught:
            run(TorchNetwork([op]), {"x": self.X})
        assert str(caught.value).startswith(f"ModelOp (inputs ['x'], outputs {[*keys, 'h']}) ")
        assert text in str(caught.value)

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
        with pytest.raises(RuntimeError, match="shapes"):
            run(TorchNetwork([op]), {"x": self.X})
        gc.collect()
        assert watched[-1]() is None
        model.head.weight.data = torch.ones(1, 3)
        assert torch.equal(run(TorchNetwork([op]), {"x": self.X})["h"], model.body(self.X))

    def test_a_layer_that_does_not_run(self) -> None:
        op = ModelOp(built(Layers, None), "x", ["y", "h"], intermediate_layers=["idle"])
        with pytest.raises(
            RuntimeError,
            match="The intermediate layer 'idle' did not run in the model's forward pass,",
        ):
            run(TorchNetwork([op]), {"x": self.X})

    @pytest.mark.parametrize(
        ("layers", "kind", "text"),
        [
            ("bdy", MissingKeyError, "'bdy' of Layers.*Did you mean 'body'"),
            (["nothing like it"], MissingKeyError, "'nothing like it' of Layers.*'body.0'"),
            (8, IndexError, "layer 8 of Layers, which has 8"),
            (-9, IndexError, "layer -9 of Layers, which has 8"),
            ([1.5], ValueError, "'m'.*1.5 of type float"),
            (
                ["body", "head"],
                ValueError,
                r"\['body', 'head'\].*\['y', 'h'\].*one for each layer",
            ),
        ],
    )
    def test_malformed(self, layers: Any, kind: Any, text: str) -> None:
        model = built(Layers, None, model_name="m")
        with pytest.raises(kind, match=text):
            TorchNetwork([ModelOp(model, "x", ["y", "h"], intermediate_layers=layers)])


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


class TestSpreadOverDevices:
    """A wrapped model is used as the model in it; without GPUs the wrapper runs it in place."""

    @pytest.fixture
    def model(self) -> nn.Module:
        model = fastnet.build(nn.DataParallel(Layers()), "sgd")
        assert type(model) is nn.DataParallel
        return model

    def test_names_and_places_are_those_of_the_model_in_it(self, model: nn.DataParallel) -> None:
        x = TestIntermediateLayers.X
        for layers in ("body.0", 2):
            op = ModelOp(model, "x", ["y", "h"], intermediate_layers=layers)
            assert torch.equal(run(TorchNetwork([op]), {"x": x})["h"], model.module.body[0](x))
