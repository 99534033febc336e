"""Sometimes around ops of every form of inputs and outputs, with values worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastnet import Network
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.meta import Sometimes


class First(TensorOp):
    """Reads bare values; of several inputs the kernel hands it the first."""

    def forward(self, data: Any, state: Any) -> Any:
        assert isinstance(data, torch.Tensor)
        return data + 1


class Constant(TensorOp):
    """Reads nothing."""

    def forward(self, data: Any, state: Any) -> Any:
        assert data is None
        return torch.tensor(7.0)


def bare(*inputs: str) -> First:
    op = First(inputs, "x")
    op.in_list = False
    return op


FORMS = {
    "bare": (LambdaOp(lambda x: x + 1, "x", "x"), {"x": 2.0}),
    "lists of one": (LambdaOp(lambda x: [x + 1], ["x"], ["x"]), {"x": 2.0}),
    "two of two": (LambdaOp(lambda x, y: [y, x], ["x", "y"], ["x", "y"]), {"x": 5.0, "y": 1.0}),
    "new ones": (LambdaOp(lambda x: (x, -x), "x", ["y", "z"]), {"x": 1.0, "y": 1.0, "z": -1.0}),
    "by name": (LambdaOp(lambda x: {"y": x, "x": x + 1}, "x", ["x"]), {"x": 2.0}),
    "one key twice": (LambdaOp(lambda a, b: a + b, ["x", "x"], "x"), {"x": 2.0}),
    "one bare input": (bare("x"), {"x": 2.0}),
    "the first of two": (bare("y", "x"), {"x": 6.0}),
    "no input": (Constant(outputs="x"), {"x": 7.0}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("prob", [0.0, 1.0])
def test_forms(form: str, prob: float) -> None:
    op, changed = FORMS[form]
    batch = {"x": torch.tensor(1.0), "y": torch.tensor(5.0), "z": torch.tensor(9.0)}
    wanted = {key: value.item() for key, value in batch.items()}
    if prob:
        wanted.update(changed)
    network = Network([Sometimes(op, prob)])
    with network(mode="train", epoch=1):
        result = network.run_step(batch)
    assert {key: value.item() for key, value in result.items()} == wanted
    # by itself too, built for no framework
    alone = Sometimes(op, prob)
    found = alone.forward([batch[key] for key in alone.inputs], {"mode": "train"})
    assert [each.item() for each in found] == [wanted[key] for key in alone.outputs]
