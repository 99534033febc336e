"""One-line reprs of ops, slicers, schedulers and networks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op import Op
from fastnet.op.numpyop import Delete
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.meta import Repeat
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
from fastnet.slicer import AxisSlicer, MeanUnslicer
from fastnet.util.formatting import format_value

OPTIMIZER = torch.optim.SGD([torch.zeros(1)], lr=0.1)


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (LambdaOp(lambda x: x, "x", "y"), "LambdaOp(x -> y)"),
        (LambdaOp(abs, "x", "y"), "LambdaOp[abs](x -> y)"),
        (CrossEntropy(("y_pred", "y"), "loss"), "CrossEntropy(y_pred, y -> loss, mode=!infer)"),
        (LambdaOp(abs, mode="!train"), "LambdaOp[abs](mode=!train)"),
        (LambdaOp(abs, mode=["train", "eval"]), "LambdaOp[abs](mode=eval|train)"),
        (LambdaOp(abs, "x", mode="eval", ds_id="b"), "LambdaOp[abs](x ->, mode=eval, ds_id=b)"),
        (LambdaOp(abs, None, "y"), "LambdaOp[abs](-> y)"),
        (Repeat(LambdaOp(abs, "x", "x"), repeat=3), "Repeat(x -> x)"),
        (Delete("x"), "Delete(x ->)"),
        (AxisSlicer(slice=["x", "y"], unslice="x", axis=1), "AxisSlicer(slices x, y, unslices x)"),
        (MeanUnslicer("loss", mode="train"), "MeanUnslicer(unslices loss, mode=train)"),
        (
            EpochScheduler({1: LambdaOp(abs, "x"), 3: None}),
            "EpochScheduler({1: LambdaOp[abs](x ->), 3: None})",
        ),
        (RepeatScheduler(["a", None]), "RepeatScheduler(['a', None])"),
        (EpochScheduler({2: OPTIMIZER}), "EpochScheduler({2: SGD(...)})"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_items(item: Any, text: str) -> None:
    assert repr(item) == text


def test_an_op_before_its_init() -> None:
    class Own(Op):
        def __init__(self) -> None:
            self.seen = repr(self)
            super().__init__("x")

    assert Own().seen == "Own()"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a" * 100, "str(...)"),
        (["a\nb"], "['a\\nb']"),
        (torch.nn.Linear(1, 1), "Linear(in_features=1, out_features=1, bias=True)"),
        (torch.nn.Sequential(torch.nn.ReLU()), "Sequential(...)"),
    ],
)
def test_values(value: Any, text: str) -> None:
    assert format_value(value) == text


class TestNetworks:
    def test_ops_alone(self) -> None:
        assert repr(TorchNetwork([], device="cpu")) == "TorchNetwork(device='cpu')"

    def test_everything(self) -> None:
        model = fastnet.build(lambda: torch.nn.Linear(2, 1), "sgd", model_name="net", device="cpu")
        network = TorchNetwork(
            [ModelOp(model, "x", "y"), UpdateOp(model, "y")],
            [Delete("x"), Delete("y")],
            AxisSlicer(axis=0, slice="x", unslice="y"),
        )
        closed = "ops=2, postprocessing=2, slicers=1, models=['net'], device='cpu'"
        assert repr(network) == f"TorchNetwork({closed})"
        with network("eval", 3):
            assert repr(network) == f"TorchNetwork({closed}, mode='eval')"
        assert repr(network) == f"TorchNetwork({closed})"

    def test_in_a_notebook(self) -> None:
        network = TorchNetwork([LambdaOp(abs, "x", "y")])
        assert network._repr_html_() == network.explain()._repr_html_()
