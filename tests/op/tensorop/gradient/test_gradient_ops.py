"""Errors for bad arguments of gradient ops."""

from __future__ import annotations

import torch

from fastnet.op.tensorop.gradient import FGSM, GradientOp


class TestGradientOp:
    def test_keys_and_models(self) -> None:
        op = GradientOp(["y", "z"], ["a", "b"], ["x", "w"], mode="train", ds_id="d")
        assert (op.inputs, op.outputs) == (["x", "w", "y", "z"], ["a", "b"])
        assert (op.mode, op.ds_id, op.get_fe_models()) == ({"train"}, {"d"}, set())
        model = torch.nn.Linear(1, 1)
        assert GradientOp("y", "a", model=model).get_fe_models() == {model}

    def test_it_keeps_its_graph_unless_told(self) -> None:
        op = GradientOp("y", "a", "x")
        assert op.fe_retain_graph() is True
        assert op.fe_retain_graph(False) is False
        assert op.fe_retain_graph() is False


class TestOthers:
    def test_fgsm_outside_of_a_network(self) -> None:
        x = torch.tensor([1.0, -3.0], requires_grad=True)
        moved = FGSM("x", "loss", "y", epsilon=0.5).forward([x, (x**2).sum()], {"tape": None})
        assert moved.tolist() == [1.0, -3.0]
        op = FGSM("x", "loss", "y", epsilon=0.5, clip_low=-9, clip_high=9)
        assert op.forward([x, (x**2).sum()], {"tape": None}).tolist() == [1.5, -3.5]
