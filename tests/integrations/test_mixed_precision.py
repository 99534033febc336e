"""Mixed precision on the CPU: autocast to bfloat16, and nothing to scale."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.integrations.sides import Sides, batches, mlp, momenta, steps

# bfloat16 has 8 bits of precision
BFLOAT16 = 2e-2


@pytest.mark.parametrize("merge", [1, 2])
def test_training(sides: Sides, merge: int) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, "adam", model_name="mlp", mixed_precision=True)
        ops, models = lib.op.tensorop, lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, "x", "y"),
                ops.LambdaOp(lambda y: (y @ y.T).dtype, "y", "product's type", mode="!train"),
                ops.loss.CrossEntropy(
                    ("y", "onehot"), "loss", from_logits=True, form="categorical"
                ),
                models.UpdateOp(model, "loss", merge_grad=merge),
            ]
        )
        told: dict[str, Any] = {
            "mixed": (network.mixed_precision, model.mixed_precision),
            "scaler": model.current_optimizer.scaler,
            "results": steps(network, batches(8)),
            "eval": steps(network, batches(2), "eval"),
            "infer": steps(network, batches(2), "infer"),
        }
        return told, model, momenta(model)

    told, _, _ = sides.agree(program)
    assert told["results"][0]["y"].dtype is torch.bfloat16
    assert told["eval"][0]["product's type"] is torch.bfloat16


@pytest.mark.parametrize("from_logits", [True, False])
def test_sparse_loss(sides: Sides, from_logits: bool) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, "sgd", model_name="mlp", mixed_precision=True)
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, "x", "y"),
                lib.op.tensorop.LambdaOp(lambda y: y.softmax(1), "y", "y", mode=None)
                if not from_logits
                else None,
                lib.op.tensorop.loss.CrossEntropy(("y", "label"), "loss", from_logits=from_logits),
                models.UpdateOp(model, "loss"),
            ]
        )
        return [result["loss"] for result in steps(network, batches(6))], model

    sides.agree(program, rtol=BFLOAT16)


def test_only_some_models(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        mixed = lib.build(mlp, "sgd", model_name="mixed", mixed_precision=True)
        full = lib.build(mlp, "sgd", model_name="full")
        models = lib.op.tensorop.model
        with pytest.raises(ValueError, match=r"mixed.precision"):
            lib.Network([models.ModelOp(mixed, "x", "y"), models.ModelOp(full, "x", "z")])

    sides.agree(program)


def test_gradients_that_an_op_has_made(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, "sgd", model_name="mlp", mixed_precision=True)
        with pytest.raises(ValueError, match=r"[Mm]ixed precision"):
            lib.op.tensorop.model.UpdateOp(model, "loss", gradients="gradients")

    sides.agree(program)


def test_autocast_is_left_again(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, "sgd", model_name="mlp", mixed_precision=True)
        network = lib.Network([lib.op.tensorop.model.ModelOp(model, "x", "y")])
        told = []
        with network("infer", 1, ""):
            told.append(torch.is_autocast_enabled("cpu"))
            network.run_step(batches(1)[0])
            told.append(torch.is_autocast_enabled("cpu"))
            with pytest.raises(RuntimeError):
                network.run_step({"x": torch.ones(2, 99)})
            told.append(torch.is_autocast_enabled("cpu"))
            told.append(torch.is_grad_enabled())
        return told

    sides.agree(program)
