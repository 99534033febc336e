"""Mixed precision on the CPU: autocast to bfloat16, and nothing to scale."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.integrations.sides import Sides, batches, mlp, momenta, steps


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


def test_only_some_models(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        mixed = lib.build(mlp, "sgd", model_name="mixed", mixed_precision=True)
        full = lib.build(mlp, "sgd", model_name="full")
        models = lib.op.tensorop.model
        with pytest.raises(ValueError, match=r"mixed.precision"):
            lib.Network([models.ModelOp(mixed, "x", "y"), models.ModelOp(full, "x", "z")])

    sides.agree(program)
