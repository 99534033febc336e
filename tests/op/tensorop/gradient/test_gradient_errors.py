"""What gradient ops refuse to be made of, and what they say."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastnet.network import TorchNetwork
from fastnet.op.tensorop.gradient import FGSM, GradientOp, Watch
from tests.refusals import refusal


class TestGradientOp:
    def test_neither_inputs_nor_model(self) -> None:
        assert refusal(AssertionError, lambda: GradientOp("y", "g")) == (
            "GradientOp differentiates either by `inputs` or by the weights of a `model`, but got "
            "inputs=[] and no model."
        )

    def test_both(self) -> None:
        model = torch.nn.Linear(1, 1)
        assert refusal(AssertionError, lambda: GradientOp("y", "g", "x", model)) == (
            "GradientOp differentiates either by `inputs` or by the weights of a `model`, but got "
            "inputs=['x'] and a model."
        )

    def test_no_model(self) -> None:
        assert refusal(AssertionError, lambda: GradientOp("y", "g", model="m")) == (  # type: ignore[arg-type]
            "GradientOp's model is a torch.nn.Module or a Keras model, not str."
        )

    @pytest.mark.parametrize(
        ("finals", "outputs", "inputs"),
        [
            (["y", "z"], ["a"], ["x", "x"]),
            (["y"], ["a"], ["x", "w"]),
            (["y", "z"], ["a", "b"], "x"),
        ],
    )
    def test_counts(self, finals: Any, outputs: Any, inputs: Any) -> None:
        sources = [inputs] if isinstance(inputs, str) else inputs
        assert refusal(AssertionError, lambda: GradientOp(finals, outputs, inputs)) == (
            "GradientOp writes one output for each of its finals, by one input each, but its "
            f"finals are {finals}, its outputs {outputs} and its inputs {sources}."
        )

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

    def test_outside_of_a_network(self) -> None:
        x = torch.tensor([1.0, 3.0], requires_grad=True)
        (found,) = GradientOp("y", "a", "x").forward([x, x**2], {"tape": None})
        assert found.tolist() == [2, 6]


class TestOthers:
    @pytest.mark.parametrize("keys", [None, []])
    def test_nothing_to_watch(self, keys: Any) -> None:
        assert refusal(ValueError, lambda: TorchNetwork([Watch(keys)])) == (
            "Watch has nothing to watch: give it the key of a tensor."
        )

    def test_watch_writes_what_it_reads(self) -> None:
        op = Watch(["x", "y"], mode="train")
        assert (op.inputs, op.outputs, op.mode) == (["x", "y"], ["x", "y"], {"train"})

    def test_fgsm_outside_of_a_network(self) -> None:
        x = torch.tensor([1.0, -3.0], requires_grad=True)
        moved = FGSM("x", "loss", "y", epsilon=0.5).forward([x, (x**2).sum()], {"tape": None})
        assert moved.tolist() == [1.0, -3.0]
        op = FGSM("x", "loss", "y", epsilon=0.5, clip_low=-9, clip_high=9)
        assert op.forward([x, (x**2).sum()], {"tape": None}).tolist() == [1.5, -3.5]

    def test_fgsm_has_one_output(self) -> None:
        op = FGSM("x", "loss", ["a", "b"])  # type: ignore[arg-type]
        assert refusal(ValueError, lambda: TorchNetwork([op])) == (
            "FGSM writes one output, but its outputs are ['a', 'b']."
        )
