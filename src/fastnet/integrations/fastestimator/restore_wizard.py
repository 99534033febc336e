"""The states of ops in FastEstimator's format.

So RestoreWizard can restore without fastnet what it has saved with it, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from fastnet.backend.dispatch import framework_of
from fastnet.integrations.fastestimator.stand_ins import ROOT
from fastnet.types import Model

__all__ = ["STATES"]


def _save(op: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    traceability: Any = import_module(f"{ROOT}.util.traceability_util")
    return {**traceability.__getstate__(op), **values}


def _restore(op: Any, state: Mapping[str, Any]) -> None:
    traceability = import_module(f"{ROOT}.util.traceability_util")
    # FastEstimator's ops have attributes that fastnet's lack.
    traceability.__setstate__(op, {key: value for key, value in state.items() if key in vars(op)})


def _variable(framework: str, value: Any) -> Any:
    """Return a tensor that FastEstimator can save, and assign a saved value to."""
    if framework == "tf":
        return import_module("tensorflow").Variable(value, trainable=False)
    return import_module("torch").as_tensor(value)


def _save_update(op: Any) -> dict[str, Any]:
    framework = str(framework_of(op.model))
    if op.merge_grad == 1:
        return _save(op, {})
    state = op.state_dict()
    parameters = op.updater().window_parameters()
    sums = [
        np.zeros(tuple(parameter.shape), "float32") if gradient is None else gradient
        for gradient, parameter in zip(state["gradients"], parameters, strict=True)
    ]
    variables = [_variable(framework, value) for value in sums]
    # FastEstimator sums the gradients of trainable weights alone. The other sums follow: those of
    # another model that the optimizer updates, and of weights that were frozen meanwhile.
    count = _count_trainable(op.model, framework)
    fe_state = {
        "step": _variable(framework, np.int64(state["merged"])),
        "grad_sum": variables[:count],
        "other_grad_sum": variables[count:],
        "grad_names": state["names"],
        "weight_sum": state["weight"],
    }
    return _save(op, fe_state)


def _restore_update(op: Any, state: Mapping[str, Any]) -> None:
    _restore(op, state)
    if "grad_sum" in state:
        variables = [*state["grad_sum"], *state.get("other_grad_sum", ())]
        window = {
            # FastEstimator does not reset the count after an update, and the sums are zero then.
            "merged": int(np.asarray(state["step"])) % op.merge_grad,
            "gradients": [np.asarray(value) for value in variables],
            "weight": state.get("weight_sum"),
        }
        # FastEstimator saves no names.
        names = {"names": state["grad_names"]} if "grad_names" in state else {}
        op.load_state_dict({**window, **names})


def _save_super_loss(op: Any) -> dict[str, Any]:
    averages = op.state_dict()["averages"]
    if not averages:
        return _save(op, {})
    framework = "tf" if op.backend.__name__ == "fastnet.backend.tf" else "torch"
    return _save(
        op,
        {
            "initialized": {
                mode: _variable(framework, value is not None) for mode, value in averages.items()
            },
            "tau": {
                mode: _variable(framework, np.float32(value or 0))
                for mode, value in averages.items()
            },
        },
    )


def _restore_super_loss(op: Any, state: Mapping[str, Any]) -> None:
    _restore(op, state)
    initialized = state.get("initialized", {})
    averages: dict[str, float | None] = {}
    for mode, average in state.get("tau", {}).items():
        has_average = bool(np.asarray(initialized[mode]))
        averages[mode] = float(np.asarray(average)) if has_average else None
    op.load_state_dict({"averages": averages})


def _count_trainable(model: Model, framework: str) -> int:
    gradients = import_module(f"fastnet.backend.{framework}.gradients")
    return len(gradients.trainable_parameters(model))


STATES: dict[str, dict[str, Callable[..., Any]]] = {
    "SuperLoss": {"__getstate__": _save_super_loss, "__setstate__": _restore_super_loss},
    "UpdateOp": {"__getstate__": _save_update, "__setstate__": _restore_update},
}
"""The methods of stateful ops that RestoreWizard uses, by class."""
