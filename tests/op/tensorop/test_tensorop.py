"""The base of tensor ops, LambdaOp and Delete."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from fastnet.backend.dispatch import get_backend
from fastnet.network import TorchNetwork
from fastnet.op.op import Op
from fastnet.op.tensorop import TensorOp
from fastnet.op.tensorop.loss import FocalLoss, Hinge
from fastnet.types import is_op, is_tensor_op

STATE = {"mode": "infer"}


class TestTensorOp:
    def test_has_all_that_a_network_asks_for(self) -> None:
        op = TensorOp("x", ["y"], mode="!infer", ds_id=["a", "b"])
        assert isinstance(op, Op)
        assert is_op(op)
        assert is_tensor_op(op)
        assert (op.inputs, op.outputs) == (["x"], ["y"])
        assert (op.in_list, op.out_list) == (False, True)
        assert op.mode == {"train", "eval", "test"}
        assert op.ds_id == {"a", "b"}
        assert op.get_fe_models() == set()
        assert op.get_fe_loss_keys() == set()
        assert op.fe_retain_graph() is None
        assert op.fe_retain_graph(True) is None
        assert op.build("torch", torch.device("cpu")) is None
        assert op.build(framework="tf") is None


class Largest(TensorOp):
    def forward(self, data: Any, state: Any) -> Any:
        return self.backend.reduce_max(data, None, False)


class TestBackend:
    def test_of_the_framework_that_the_op_was_built_for(self) -> None:
        op = Largest("x", "y")
        op.build("torch", torch.device("cpu"))
        assert op.backend is get_backend("torch")
        assert op.forward(torch.tensor([1.0, 6.0]), STATE) == 6.0
        op.build("np")
        assert op.backend is get_backend("np")

    def test_a_class_whose_build_does_not_call_its_base(self) -> None:
        class Silent(Hinge):
            def build(self, framework: str, device: Any = None) -> None:
                self.framework = framework

        op = Silent(("p", "t"), "loss")
        with TorchNetwork([op])("eval", 1) as network:
            result = network.run_step({"p": torch.tensor([[0.5]]), "t": torch.tensor([[1.0]])})
        assert result["loss"].item() == 0.5
        assert op.framework == "torch"

    @pytest.mark.parametrize(
        "again", [copy.copy, copy.deepcopy, lambda op: pickle.loads(pickle.dumps(op))]
    )
    @pytest.mark.parametrize("built", [False, True])
    def test_of_copies(self, again: Any, built: bool) -> None:
        op = FocalLoss(("p", "t"), "loss")
        if built:
            op.build("torch")
        other = again(op)
        data = [torch.tensor([[0.5]]), torch.tensor([[1.0]])]
        assert other.forward(data, {}) == op.forward(data, {})
        assert other.backend is op.backend
