"""Models, optimizers and names from `build`, and the public attributes of networks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integrations.sides import Sides
from tests.integrations.tf_sides import mlp, tf


def attributes(fw: Any, model: Any) -> dict[str, Any]:
    optimizer = model.current_optimizer
    told = {
        "names": (model.model_name, type(optimizer).__name__, model.fe_compiled),
        "mixed": model.mixed_precision,
        "same": model.optimizer is optimizer,
        "memory": None if optimizer is None else fw.momenta(model),
    }
    if fw.NAME == "tf":
        told["input"] = model.input_spec
        told["policy"] = [layer.dtype_policy.name for layer in model.layers]
        told["settings"] = None if optimizer is None else optimizer.get_config()
    elif optimizer is not None:
        (group,) = optimizer.state_dict()["param_groups"]
        told["settings"] = {key: repr(value) for key, value in group.items()}
        told["scaler"] = optimizer.scaler
    return told


@pytest.mark.parametrize(
    ("optimizer", "mixed"),
    [
        *((name, False) for name in ("adadelta", "adagrad", "adam", "adamax", "rmsprop", "sgd")),
        *((None, False), ("function", False), ("adam", True)),
    ],
)
def test_one_model(sides: Sides, fw: Any, optimizer: str | None, mixed: bool) -> None:
    def program(lib: Any) -> Any:
        optimizer_fn: Any = fw.adam(0.1) if optimizer == "function" else optimizer
        model = lib.build(fw.mlp, optimizer_fn, model_name="mlp", mixed_precision=mixed)
        return attributes(fw, model), model

    sides.agree(program)


def test_several_models(sides: Sides, fw: Any) -> None:
    """Names that are not given count up, over all builds of a process."""

    mlp = fw.mlp

    def program(lib: Any) -> Any:
        start = int(lib.build(mlp, "sgd").model_name.removeprefix("model") or 0)
        models = lib.build(lambda: [mlp(), mlp()], ["sgd", None])
        named = lib.build(lambda: (mlp(), mlp()), ["adam", None], model_name=["one", "two"])
        models.append(lib.build(mlp, "sgd"))
        numbers = [int(one.model_name.removeprefix("model")) - start for one in models]
        return numbers, [attributes(fw, one) for one in named], named

    numbers, _, _ = sides.agree(program)
    assert numbers == [1, 2, 3]


@pytest.mark.tf
def test_attributes_of_a_network(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, "sgd", model_name="only")
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                None,
                models.ModelOp(model, "a", "b"),
                lib.op.tensorop.LambdaOp(tf.reduce_sum, "b", "loss"),
                models.UpdateOp(model, "loss"),
            ]
        )
        before = {
            "ops": [type(op).__name__ for op in network.ops],
            "models": [model.model_name for model in network.models],
            "network": (network.target_type, network.device, type(network).__name__),
            "is one": isinstance(network, lib.network.BaseNetwork),
            "losses": network.get_loss_keys(),
            "inputs": network.ctx_inputs,
        }
        with network("train", 2, "some", {"b"}, warmup=True, eager=True):
            state = dict(network.ctx_state)
            state.pop("_force_tf_retrace", None)  # FastEstimator's own
            within = {
                "keys": (network.ctx_inputs, network.ctx_gpu_inputs, network.ctx_outputs),
                "ops": [type(op).__name__ for op in network.ctx_ops],
                "models": [model.model_name for model in network.ctx_models],
                "state": state,
            }
        return before, within, network.ctx_state, network.ctx_ops, network.ctx_models

    sides.agree(program)
