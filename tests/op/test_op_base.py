"""The base of all ops and of tensor ops."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastnet import Network
from fastnet.backend.dispatch import get_backend
from fastnet.op import Op
from fastnet.op.numpyop import Delete
from fastnet.op.op import get_inputs_by_op, is_delete, write_outputs_by_op
from fastnet.op.tensorop import TensorOp
from fastnet.types import is_op

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("keys", "names", "is_list"),
    [
        (None, [], False),
        ("x", ["x"], False),
        (("x", "y"), ["x", "y"], True),
        ([], [], True),
        ({"x": 1}.keys(), ["x"], True),
    ],
)
def test_keys(keys: Any, names: list[str], is_list: bool) -> None:
    op = Op(inputs=keys, outputs=keys)
    assert (op.inputs, op.in_list) == (names, is_list)
    assert (op.outputs, op.out_list) == (names, is_list)


def test_reading_and_writing() -> None:
    store: dict[str, Any] = {"x": 1, "y": 2}
    assert get_inputs_by_op(Op(inputs="x"), store) == 1
    assert get_inputs_by_op(Op(inputs=["x", "y"]), store) == [1, 2]
    write_outputs_by_op(Op(outputs=["z"]), store, [3])
    assert store["z"] == 3


def test_what_deletes() -> None:
    """The class of that name, of fastnet or of FastEstimator, and those derived from it."""
    theirs = type("Delete", (), {"__module__": "fastestimator.op.numpyop.numpyop"})
    derived = type("Mine", (theirs,), {"__module__": "mine"})
    other = type("Deleted", (), {"__module__": "mine"})
    deletes = [is_delete(op) for op in (Delete("x"), theirs(), derived(), Op("x"), other())]
    assert deletes == [True, True, True, False, False]


def test_an_op_without_forward_is_none_yet() -> None:
    assert not is_op(Op())


STATE = {"mode": "infer"}


class Largest(TensorOp):
    def forward(self, data: Any, state: Any) -> Any:
        return self.backend.reduce_max(data, None, False)


def test_the_backend_is_of_the_framework_that_the_op_was_built_for() -> None:
    op = Largest("x", "y")
    op.build("torch", torch.device("cpu"))
    assert op.backend is get_backend("torch")
    assert op.forward(torch.tensor([1.0, 6.0]), STATE) == 6.0
    op.build("np")
    assert op.backend is get_backend("np")


class Positive(TensorOp):
    resolved_from = ("factor",)

    def __init__(self, factor: float) -> None:
        super().__init__(inputs="x", outputs="y")
        self.factor = factor

    def build(self, framework: str, device: Any = None) -> None:
        super().build(framework, device)
        self._scale = self.factor
        if self.factor <= 0:
            raise ValueError("the factor must be positive")

    def forward(self, data: Any, state: dict[str, Any]) -> Any:
        return data * self._scale


def test_a_setting_that_fails_and_is_set_back() -> None:
    op = Positive(2.0)
    network = Network([op])
    batch = {"x": torch.ones(1)}
    assert network.transform(batch, "infer")["y"] == 2
    op.factor = -1.0
    with pytest.raises(ValueError, match="must be positive"):
        network.transform(batch, "infer")
    op.factor = 2.0
    assert network.transform(batch, "infer")["y"] == 2
