"""What a step reads, returns and leaves alone."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from fastnet.network import TorchNetwork
from fastnet.op.numpyop import NumpyOp
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp
from tests.network.programs import batches, built, line, mlp, regression, run, supervised


def chain(**network: Any) -> TorchNetwork:
    """Return a -> b -> c -> d, each one more."""
    steps = zip("abc", "bcd", strict=True)
    return TorchNetwork([LambdaOp(lambda x: x + 1, *keys) for keys in steps], **network)


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True)
class Record:
    value: Any


def test_results_are_detached_at_any_depth() -> None:
    def nest(y: torch.Tensor) -> Any:
        return {"list": [y, (y, 3)], "pair": Pair(y, "a"), "record": Record(y)}

    network = TorchNetwork([*supervised(built(mlp)), LambdaOp(nest, "y", "nest")])
    result = run(network, *batches(1), "train")
    found = result["nest"]
    for tensor in (
        result["y"],
        result["loss"],
        found["list"][0],
        found["list"][1][0],
        found["pair"].left,
        found["record"].value,
    ):
        assert not tensor.requires_grad
        assert tensor.grad_fn is None
    assert type(found["pair"]) is Pair
    assert type(found["record"]) is Record


class Own(torch.Tensor):
    """A subclass of tensors."""


@pytest.mark.parametrize(
    "value",
    [
        {"a": [torch.ones(2)]},
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(2, 2).to_sparse(),
        torch.ones(2).as_subclass(Own),
    ],
    ids=lambda value: type(value).__name__,
)
def test_tensors_are_not_copied(value: Any) -> None:
    seen: list[Any] = []
    network = TorchNetwork([LambdaOp(seen.append, "x", "y")])
    assert run(network, {"x": value})["x"] is seen[0] is value


class TestDesiredKeys:
    def test_an_op_runs_though_nobody_wants_its_output(self) -> None:
        ran: list[int] = []
        network = TorchNetwork([LambdaOp(ran.append, "x", "y")])
        assert run(network, {"x": 1}, desired_output_keys={"z"}) == {"x": 1}
        assert ran == [1]

    def test_the_callers_set_is_not_kept(self) -> None:
        network = chain()
        wanted = {"d"}
        with network(mode="infer", epoch=1, desired_output_keys=wanted):
            wanted.add("b")
            assert set(network.run_step({"a": 1})) == {"a", "d"}
        with network(mode="infer", epoch=1, desired_output_keys=wanted):
            assert set(network.run_step({"a": 1})) == {"a", "b", "d"}


class TestGradMode:
    class Look(TensorOp):
        def forward(self, data: Any, state: Any) -> Any:
            state["seen"] = torch.is_grad_enabled()
            if data is None:
                raise RuntimeError("no data")
            return data

    @pytest.mark.parametrize("outside", [True, False])
    @pytest.mark.parametrize("mode", ["train", "infer"])
    @pytest.mark.parametrize("fails", [True, False])
    def test_is_on_only_for_ops_that_take_gradients(
        self, outside: bool, mode: str, fails: bool
    ) -> None:
        look = self.Look("z", "z")
        network = TorchNetwork([look, *regression(built(line))])
        batch = {"x": torch.ones(1, 2), "z": None if fails else 1}
        with torch.set_grad_enabled(outside), network(mode=mode, epoch=1):
            # a step in training that is not allowed gradients fails, which is not the point here
            try:
                network.run_step(batch)
            except RuntimeError:
                assert fails or not outside
            assert torch.is_grad_enabled() == outside
            assert network.ctx_state["seen"] == (mode == "train" and outside)
            assert network.ctx_state["req_grad"] == (mode == "train")

    def test_is_put_back_after_an_op_that_changes_it(self) -> None:
        network = TorchNetwork([LambdaOp(lambda x: torch.set_grad_enabled(True), "x", "y")])
        with torch.no_grad():
            run(network, {"x": 1})
            assert not torch.is_grad_enabled()
        network = TorchNetwork([LambdaOp(lambda x: torch.set_grad_enabled(False), "x", "y")])
        run(network, {"x": 1})
        assert torch.is_grad_enabled()

    def test_in_inference_mode(self) -> None:
        model = built(line)
        with torch.inference_mode():
            result = run(TorchNetwork([ModelOp(model, "x", "y")]), {"x": torch.ones(1, 2)})
        assert result["y"].is_inference()


def test_postprocessing_has_the_state_of_the_network() -> None:
    class Look(NumpyOp):
        def forward_batch(self, data: Any, state: Any) -> Any:
            return np.array([state["epoch"]])

    network = TorchNetwork([], postprocessing=Look("x", "epoch"))
    assert run(network, {"x": 1}, epoch=7)["epoch"] == 7
