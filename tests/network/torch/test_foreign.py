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
from fastnet.op.tensorop import TensorOp
from fastnet.op.tensorop.model import ModelOp
from tests.network.strangers import STRANGERS, Hostile


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
    while isinstance(data, (dict, list, tuple, Pair)):
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
        assert leaf_of(batch["x"]) is stranger

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


class Own(torch.Tensor):
    """A subclass of tensors."""


@pytest.mark.parametrize(
    "value",
    [
        "a",
        1.5,
        True,
        None,
        {"a": [torch.ones(2)]},
        torch.float32,
        torch.Tensor,
        np.array([None, "a"]),
        np.str_("a"),
        np.array(["2020-01-01"], "datetime64[D]"),
        torch.ones(2),
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(2, 2).to_sparse(),
        torch.ones(2).as_subclass(Own),
        Pair(torch.ones(2), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_not_touched(value: Any) -> None:
    op = Seeing("x", "y")
    result = run(TorchNetwork(op), {"x": value})
    assert op.seen is value
    assert result["x"] is value


def test_axes_of_graphs_are_refused() -> None:
    with pytest.raises(TypeError, match=r"TorchNetwork.* 'open_axes'"):
        fastnet.Network(
            [ModelOp(fastnet.build(lambda: torch.nn.Linear(1, 1), None), "x", "y")], open_axes=0
        )
