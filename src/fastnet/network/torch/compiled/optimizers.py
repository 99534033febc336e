"""The updates of torch's optimizers, with all that may change between steps as tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from fastnet.backend.torch._internals import (
    WRAPPED_STEP,
    is_defined_by_torch,
    step_hook_tables,
)
from fastnet.backend.torch.optimizer_step import is_bare_zero_grad
from fastnet.network.torch.compiled import rules
from fastnet.network.torch.compiled.rules import UpdateRule
from fastnet.network.torch.compiled.uncapturable import Uncapturable

# The setting of a group that holds a number as one of a pair, and the index of it there.
_PAIRS = {"beta1": ("betas", 0), "beta2": ("betas", 1)}
_DECOUPLED = "decoupled_weight_decay"
_RATE = "lr"
_DENSE = (
    "without sparse=True in nn.Embedding steps are compiled, but each updates the whole table, "
    "which, if it is large, takes many times as long as a sparse step that runs eagerly"
)
_NOT_TRACEABLE = {
    "LBFGS": "which computes the loss several times a step; its steps run eagerly",
    "SparseAdam": f"which updates by sparse gradients; with Adam, and {_DENSE}",
}


@dataclasses.dataclass(frozen=True)
class OptimizerSpec:
    """The update rule of an optimizer, and which of its settings are inputs of a compiled step.

    Attributes:
        kind: The optimizer's class.
        update: Updates a parameter.
        inputs: The settings that are inputs.
        constants: The settings that are constants.
        state_names: Given the settings of a group and a parameter in it, returns the names of the
            parameter's state tensors.
    """

    kind: type[torch.optim.Optimizer]
    update: UpdateRule
    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    state_names: Callable[[Mapping[str, Any], torch.Tensor], Iterable[str]]

    @property
    def entry_inputs(self) -> list[str]:
        """The inputs that are entries of a group, and not a part of one, as the betas are."""
        return [name for name in self.inputs if name not in _PAIRS]

    def numbers_of(self, group: Mapping[str, Any]) -> list[float]:
        """List the numbers of a group, in order."""
        numbers: list[float] = []
        for name in self.inputs:
            if name in _PAIRS:
                pair, index = _PAIRS[name]
                value = group[pair][index]
            else:
                value = group[name]
                if is_number_tensor(value):
                    value = value.item()
            # numpy's float64 is a subclass of float.
            if type(value) is not int and not isinstance(value, float):
                raise Uncapturable(
                    f"`{name}` of {self.kind.__name__} is of type {type(value).__name__}"
                )
            numbers.append(float(value))
        return numbers

    def constants_of(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return the constants of a group: the settings under `constants`, and signs of numbers."""
        constants: dict[str, Any] = {}
        for name in (*self.constants, "capturable", "differentiable"):
            value = group.get(name, False)
            if name == _DECOUPLED and name not in group:
                # Groups of older versions of AdamW lack this setting.
                value = self.kind is torch.optim.AdamW
            parts = value if type(value) in (tuple, list) else (value,)
            if not all(type(part) in (bool, int, float, str, type(None)) for part in parts):
                raise Uncapturable(
                    f"`{name}` of {self.kind.__name__} is, or holds, a value that is not a bool, "
                    "number, string or None"
                )
            constants[name] = tuple(value) if isinstance(value, list) else value
        # Torch leaves out terms whose factor is 0, so the signs of factors are constants. The rate
        # is no such factor: it may be 0 at the start of a warm-up.
        numbers = dict(zip(self.inputs, self.numbers_of(group), strict=True))
        numbers.pop(_RATE)
        return {**constants, **{name: _sign_of(value) for name, value in numbers.items()}}


def is_number_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of one number, such as a learning rate, on the CPU."""
    return type(value) is torch.Tensor and value.numel() == 1 and value.device.type == "cpu"


def _sign_of(number: float) -> int:
    """Return the sign of a number: -1, 0 or 1, which is also that of NaN."""
    if number == 0:
        return 0
    return -1 if number < 0 else 1


def spec_of(optimizer: torch.optim.Optimizer) -> OptimizerSpec:
    """Return the spec of an optimizer, or refuse it."""
    kind = type(optimizer)
    spec = next((spec for spec in _SPECS if spec.kind is kind), None)
    name = kind.__name__
    if spec is None:
        why = _NOT_TRACEABLE.get(name) if kind.__module__.startswith("torch.optim") else None
        if why is not None:
            raise Uncapturable(f"the optimizer is {name}, {why}")
        known = ", ".join(spec.kind.__name__ for spec in _SPECS)
        raise Uncapturable(f"the optimizer is {name}; only {known} can be captured")
    attributes = vars(optimizer)
    if "step" in attributes and not hasattr(attributes["step"], WRAPPED_STEP):
        raise Uncapturable(f"`step` of {name} was replaced")
    if "zero_grad" in attributes:
        raise Uncapturable(f"`zero_grad` of {name} was replaced")
    if not is_defined_by_torch(kind.step) or not is_bare_zero_grad(optimizer.zero_grad):
        raise Uncapturable(f"`step` or `zero_grad` of the class {name} was replaced")
    if any(step_hook_tables(optimizer)):
        raise Uncapturable(f"{name} has hooks around its step")
    for group in optimizer.param_groups:
        for flag in ("capturable", "differentiable"):
            if group.get(flag):
                raise Uncapturable(f"{name} is {flag}")
        spec.constants_of(group)
    return spec


def require_dense(name: str, gradient: torch.Tensor) -> None:
    """Refuse a gradient of another layout, such as that of a sparse embedding."""
    if gradient.layout is not torch.strided:
        raise Uncapturable(f"{name} is sparse; {_DENSE}")


def waits_for_state(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer creates its state only in its first step."""
    if optimizer.state:
        return False
    try:
        spec = spec_of(optimizer)
    except Uncapturable:
        return False
    return any(
        bool(spec.state_names(group, parameter))
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def _fixed_names(*names: str) -> Callable[[Mapping[str, Any], torch.Tensor], Iterable[str]]:
    """Return a function for optimizers whose state has the same names for all settings."""
    return lambda group, parameter: names


def _sgd_names(group: Mapping[str, Any], parameter: torch.Tensor) -> Sequence[str]:
    return ("momentum_buffer",) if group["momentum"] != 0 else ()


def _adam_names(group: Mapping[str, Any], parameter: torch.Tensor) -> Sequence[str]:
    maximum = ("max_exp_avg_sq",) if group["amsgrad"] else ()
    return ("step", "exp_avg", "exp_avg_sq", *maximum)


def _rmsprop_names(group: Mapping[str, Any], parameter: torch.Tensor) -> Sequence[str]:
    average = ("grad_avg",) if group["centered"] else ()
    momentum = ("momentum_buffer",) if group["momentum"] > 0 else ()
    return ("step", "square_avg", *average, *momentum)


def _adafactor_names(group: Mapping[str, Any], parameter: torch.Tensor) -> Sequence[str]:
    variances = ("row_var", "col_var") if parameter.dim() > 1 else ("variance",)
    return ("step", *variances)


_ADAM = "lr beta1 beta2 eps weight_decay"
_AVERAGES = ("step", "exp_avg", "exp_avg_sq")

# By class: the update, the inputs, the constants, and the function for the names of the state.
_TABLE: dict[str, tuple[UpdateRule, str, str, Any]] = {
    "SGD": (rules.sgd, "lr momentum dampening weight_decay", "maximize nesterov", _sgd_names),
    "Adam": (rules.adam, _ADAM, f"amsgrad maximize {_DECOUPLED}", _adam_names),
    "AdamW": (rules.adam, _ADAM, f"amsgrad maximize {_DECOUPLED}", _adam_names),
    "RMSprop": (
        rules.rmsprop,
        "lr alpha eps weight_decay momentum",
        "maximize centered",
        _rmsprop_names,
    ),
    "Adagrad": (
        rules.adagrad,
        "lr lr_decay weight_decay eps",
        "maximize",
        _fixed_names("step", "sum"),
    ),
    "Adadelta": (
        rules.adadelta,
        "lr rho eps weight_decay",
        "maximize",
        _fixed_names("step", "square_avg", "acc_delta"),
    ),
    "Adamax": (rules.adamax, _ADAM, "maximize", _fixed_names("step", "exp_avg", "exp_inf")),
    "NAdam": (
        rules.nadam,
        f"{_ADAM} momentum_decay",
        f"maximize {_DECOUPLED}",
        _fixed_names(*_AVERAGES, "mu_product"),
    ),
    "RAdam": (rules.radam, _ADAM, f"maximize {_DECOUPLED}", _fixed_names(*_AVERAGES)),
    "ASGD": (
        rules.asgd,
        "lr lambd alpha t0 weight_decay",
        "maximize",
        _fixed_names("step", "eta", "mu", "ax"),
    ),
    "Rprop": (
        rules.rprop,
        "lr",
        "maximize etas step_sizes",
        _fixed_names("step", "prev", "step_size"),
    ),
    "Adafactor": (
        rules.adafactor,
        "lr beta2_decay d weight_decay",
        "maximize eps",
        _adafactor_names,
    ),
    "Muon": (
        rules.muon,
        "lr weight_decay momentum",
        "nesterov ns_coefficients eps ns_steps adjust_lr_fn",
        _fixed_names("momentum_buffer"),
    ),
}
# Older releases of torch lack some of them.
_SPECS = [
    OptimizerSpec(
        kind=getattr(torch.optim, name),
        update=update,
        inputs=tuple(inputs.split()),
        constants=tuple(constants.split()),
        state_names=state_names,
    )
    for name, (update, inputs, constants, state_names) in _TABLE.items()
    if hasattr(torch.optim, name)
]
