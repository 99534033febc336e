"""What ops have of their framework: declared in a class, bound by `build`, found when called."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from fastnet.backend import numpy as np_functions
from fastnet.backend import torch as torch_functions
from fastnet.backend.torch.losses import hinge
from fastnet.frameworks import MissingPart
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import TensorOp
from fastnet.op.tensorop.loss import FocalLoss, Hinge
from fastnet.op.tensorop.of_framework import OfFramework, WithFramework


def doubled_mean(functions: Any, tensor: Any) -> Any:
    return functions.reduce_mean(tensor, None, False) * 2


class Both(TensorOp):
    _largest = OfFramework("reduce_max")
    _doubled = WithFramework(doubled_mean)

    def forward(self, data: Any, state: Any) -> Any:
        return [self._largest(data, None, False), self._doubled(data)]


X = torch.tensor([1.0, 2.0, 6.0])


def test_bound_by_build() -> None:
    op = Both("x", ["a", "b"])
    op.build("torch", torch.device("cpu"))
    assert vars(op)["_largest"] is torch_functions.reduce_max
    assert [one.item() for one in op.forward(X, {})] == [6.0, 6.0]


def test_found_by_the_value_where_nothing_was_built() -> None:
    op = Both("x", ["a", "b"])
    assert [one.item() for one in op.forward(X, {})] == [6.0, 6.0]
    largest, doubled = op.forward(np.array([1.0, 2.0, 6.0]), {})
    assert (largest, doubled) == (6.0, 6.0)
    assert "_largest" not in vars(op)


def test_built_for_another_framework() -> None:
    op = Both("x", ["a", "b"])
    op.build("torch")
    op.build("np")
    assert vars(op)["_largest"] is np_functions.reduce_max


def test_a_class_that_has_its_own() -> None:
    class Own(Both):
        def _largest(self, *args: Any) -> str:
            return "own"

    op = Own("x", ["a", "b"])
    op.build("torch")
    assert op.forward(X, {})[0] == "own"


def test_a_class_whose_build_does_not_call_its_base() -> None:
    class Silent(Hinge):
        def build(self, framework: str, device: Any = None) -> None:
            self.told = framework

    op = Silent(("p", "t"), "loss")
    with TorchNetwork([op])("eval", 1) as network:
        result = network.run_step({"p": torch.tensor([[0.5]]), "t": torch.tensor([[1.0]])})
    assert result["loss"].item() == 0.5
    assert op.told == "torch"


def test_a_class_whose_build_does() -> None:
    class Loud(Hinge):
        def build(self, framework: str, device: Any = None) -> None:
            super().build(framework, device)
            self.bound = self._loss

    op = Loud(("p", "t"), "loss")
    op.build("torch")
    assert op.bound is hinge


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda op: pickle.loads(pickle.dumps(op))]
)
@pytest.mark.parametrize("built", [False, True])
def test_copies(again: Any, built: bool) -> None:
    op = FocalLoss(("p", "t"), "loss")
    if built:
        op.build("torch")
    other = again(op)
    data = [torch.tensor([[0.5]]), torch.tensor([[1.0]])]
    assert other.forward(data, {}) == op.forward(data, {})
    assert ("_compute" in vars(other)) is built
    assert b"reduce_mean" not in pickle.dumps(op), "a function is found again, and not saved"


def test_a_part_that_the_framework_lacks() -> None:
    class Wants(TensorOp):
        _tilt = OfFramework("tilt")

    with pytest.raises(MissingPart) as caught:
        Wants("x", "y").build("torch")
    assert str(caught.value) == (
        "Wants needs 'tilt' of the framework 'torch', but fastnet.backend.torch has none. "
        "CONTRIBUTING.md, 'Add a framework', lists what one has to bring."
    )
    with pytest.raises(MissingPart, match=r"^Wants needs 'tilt' of the framework, but fastnet"):
        Wants("x", "y")._tilt(X)


def test_a_framework_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="There is no framework 'jax'"):
        Both("x", ["a", "b"]).build("jax")
