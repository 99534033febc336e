"""Tensors of other frameworks, and arrays, in the batches of torch networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.strangers import STRANGERS, ArrayLike, Hostile


@dataclasses.dataclass
class Pair:
    first: Any
    second: Any


class Seeing(TensorOp):
    """Keeps what it is given, and hands it through."""

    seen: Any = None

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        self.seen = data
        return data


NESTS: list[Callable[[Any], Any]] = [
    lambda part: part,
    lambda part: [part],
    lambda part: (part, "a"),
    lambda part: {"a": {"b": [part, None]}},
    lambda part: Pair(part, 3),
]


def leaf_of(data: Any) -> Any:
    while not hasattr(data, "dtype"):
        parts = data.values() if isinstance(data, dict) else data
        data = next(iter(vars(data).values() if isinstance(data, Pair) else parts))
    return data


def run(network: TorchNetwork, batch: dict[str, Any]) -> dict[str, Any]:
    with network(mode="infer", epoch=1):
        return network.run_step(batch)


class TestOfOtherFrameworks:
    @pytest.mark.parametrize("make", STRANGERS)
    @pytest.mark.parametrize("nest", NESTS)
    def test_are_tensors_for_ops_and_come_back_as_tensors(self, make: Any, nest: Any) -> None:
        op = Seeing("x", "y")
        stranger = make([1.0, 2.0])
        batch = {"x": nest(stranger), "rest": stranger}
        result = run(TorchNetwork(op), batch)
        for data in (op.seen, result["x"], result["y"]):
            assert type(data) is type(nest(torch.ones(2)))
            assert type(leaf_of(data)) is torch.Tensor
            assert leaf_of(data).tolist() == [1.0, 2.0]
        # neither what nobody reads nor the batch itself is changed
        assert result["rest"] is stranger
        assert leaf_of_stranger(batch["x"]) is stranger

    @pytest.mark.parametrize("make", STRANGERS)
    def test_are_copies(self, make: Any) -> None:
        stranger = make([1.0, 2.0])
        result = run(TorchNetwork(LambdaOp(lambda x: x.add_(1), "x", "y")), {"x": stranger})
        assert result["y"].tolist() == [2.0, 3.0]
        assert list(stranger.values) == [1.0, 2.0]

    @pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool", "float16"])
    def test_keep_their_types(self, dtype: str) -> None:
        op = Seeing("x", "y")
        for make in (*STRANGERS, np.array):
            run(TorchNetwork(op), {"x": make([1, 0], dtype=dtype)})
            assert op.seen.dtype is getattr(torch, dtype)

    def test_that_give_no_values_stay_as_they_are(self) -> None:
        op = Seeing("x", "y")
        hostile = Hostile()
        assert run(TorchNetwork(op), {"x": [hostile]})["y"][0] is op.seen[0] is hostile


class TestArrays:
    @pytest.mark.parametrize("value", [np.ones((2, 3), "float32"), np.array(3), np.float64(1.5)])
    @pytest.mark.parametrize("nest", NESTS)
    def test_are_tensors_for_ops_and_come_back_as_they_were(self, value: Any, nest: Any) -> None:
        op = Seeing("x", "y")
        batch = {"x": nest(value)}
        result = run(TorchNetwork(op), batch)
        assert result["x"] is batch["x"]
        assert leaf_of(batch["x"]) is value
        for data in (op.seen, result["y"]):
            assert type(leaf_of(data)) is torch.Tensor
            assert np.array_equal(leaf_of(data).numpy(), value)

    def test_that_must_not_be_written_to_are_copied(self) -> None:
        array = np.ones(2)
        array.flags.writeable = False
        result = run(TorchNetwork(LambdaOp(lambda x: x.add_(1), "x", "y")), {"x": array})
        assert result["y"].tolist() == [2.0, 2.0]
        assert array.tolist() == [1.0, 1.0]

    @pytest.mark.parametrize(
        "value",
        [
            "a",
            b"a",
            1,
            1.5,
            True,
            None,
            {"a": 1},
            torch.float32,
            torch.Tensor,
            np.array(["a"]),
            np.array([None, "a"]),
            np.str_("a"),
            np.array(["2020-01-01"], "datetime64[D]"),
        ],
        ids=repr,
    )
    def test_what_is_no_tensor_stays_as_it_is(self, value: Any) -> None:
        op = Seeing("x", "y")
        result = run(TorchNetwork(op), {"x": value})
        assert op.seen is value
        assert result["x"] is value


class TestOwnTensors:
    @pytest.mark.parametrize(
        "value",
        [
            torch.ones(2),
            torch.nn.Parameter(torch.ones(2)),
            torch.ones(2, 2).to_sparse(),
            {"a": [torch.ones(2)]},
            [torch.ones(2), "a"],
            (torch.ones(2),),
            Pair(torch.ones(2), 1),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_are_not_touched(self, value: Any) -> None:
        op = Seeing("x", "y")
        result = run(TorchNetwork(op), {"x": value})
        assert op.seen is value
        assert result["x"] is value

    def test_a_subclass_is_not_touched(self) -> None:
        class Own(torch.Tensor):
            pass

        op = Seeing("x", "y")
        value = torch.ones(2).as_subclass(Own)
        run(TorchNetwork(op), {"x": value})
        assert op.seen is value


def leaf_of_stranger(data: Any) -> Any:
    while type(data) not in STRANGERS:
        parts = data.values() if isinstance(data, dict) else data
        data = next(iter(vars(data).values() if isinstance(data, Pair) else parts))
    return data


def test_training_is_that_of_the_loop_by_hand() -> None:
    torch.manual_seed(0)
    model, twin = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    twin.load_state_dict(model.state_dict())
    model = fastnet.build(lambda: model, lambda parameters: torch.optim.SGD(parameters, 0.1))
    network = fastnet.Network(
        [
            ModelOp(model, "x", "p"),
            CrossEntropy(["p", "t"], "loss", from_logits=True),
            UpdateOp(model, "loss"),
        ]
    )
    optimizer = torch.optim.SGD(twin.parameters(), 0.1)
    generator = np.random.default_rng(0)
    with network(mode="train", epoch=1):
        for make in (np.asarray, ArrayLike, np.asarray):
            x = generator.normal(size=(5, 4)).astype("float32")
            t = generator.integers(3, size=5)
            target = t if make is np.asarray else ArrayLike(t, "int64")
            result = network.run_step({"x": make(x), "t": target})
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(twin(torch.tensor(x)), torch.tensor(t))
            loss.backward()
            optimizer.step()
            assert torch.equal(result["loss"], loss.detach())
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(own, other)


def test_measured_steps_take_them_too() -> None:
    op = Seeing("x", "y")
    network = TorchNetwork(op)
    with fastnet.profile(network), network(mode="infer", epoch=1):
        result = network.run_step({"x": ArrayLike([1.0]), "z": 1})
    assert type(op.seen) is type(result["x"]) is type(result["y"]) is torch.Tensor


def test_axes_of_graphs_are_refused() -> None:
    with pytest.raises(TypeError, match=r"TorchNetwork.* 'open_axes'"):
        fastnet.Network(
            [ModelOp(fastnet.build(lambda: torch.nn.Linear(1, 1), None), "x", "y")], open_axes=0
        )
