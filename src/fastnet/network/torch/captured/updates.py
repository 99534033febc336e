"""The updates of torch's optimizers, with all that may change between steps as tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from fastnet.backend.torch._internals import (
    is_bare_zero_grad,
    is_torchs,
    optimizer_hooks,
    scheduler_has_wrapped,
)
from fastnet.network.torch.captured.observing import Uncapturable

__all__ = ["Rule", "rule_of"]

Tensors = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Rule:
    """How an optimizer updates, and which of its settings a captured step takes as numbers.

    Attributes:
        kind: The optimizer's class.
        numbers: The settings that are numbers.
        update: Given a parameter, its gradient, what is remembered of it, the numbers by name and
            the other settings, updates the parameter and what is remembered.
        remembers: Given the settings of a group, the names of what must be remembered of each
            parameter.
    """

    kind: type[torch.optim.Optimizer]
    numbers: tuple[str, ...]
    update: Callable[[torch.Tensor, torch.Tensor, Tensors, Tensors, Mapping[str, Any]], None]
    remembers: Callable[[Mapping[str, Any]], Iterable[str]]

    def numbers_of(self, group: Mapping[str, Any]) -> list[float]:
        """List the numbers of a group, in order.

        Args:
            group: One of the optimizer's `param_groups`.

        Raises:
            Uncapturable: If one of them is no number, such as a tensor.
        """
        found: list[float] = []
        for name in self.numbers:
            value = group["betas"][int(name[-1]) - 1] if name.startswith("beta") else group[name]
            if type(value) not in (int, float):
                raise Uncapturable(
                    f"`{name}` of {self.kind.__name__} is of type {type(value).__name__}"
                )
            found.append(float(value))
        return found

    def settings_of(self, group: Mapping[str, Any]) -> tuple[Any, ...]:
        """List what of a group must stay as it is: all but its parameters and its numbers.

        Args:
            group: One of the optimizer's `param_groups`.
        """
        passed = {"params", "betas", "initial_lr", "max_lr", "min_lr", "max_momentum", "swa_lr"}
        passed |= {"base_momentum", *self.numbers}
        rest = [(name, group[name]) for name in sorted(group) if name not in passed]
        # what is nothing is left out of the arithmetic, as torch leaves it out
        return (*rest, *(value != 0 for value in self.numbers_of(group)))


def rule_of(optimizer: torch.optim.Optimizer) -> Rule:
    """Find how an optimizer updates.

    Args:
        optimizer: The optimizer.

    Returns:
        Its rule.

    Raises:
        Uncapturable: If a captured step cannot do what the optimizer does.
    """
    kind = type(optimizer)
    rule = next((one for one in _RULES if one.kind is kind), None)
    name = kind.__name__
    if rule is None:
        known = ", ".join(one.kind.__name__ for one in _RULES)
        raise Uncapturable(f"the optimizer is {name}; what can be captured is {known}")
    own = vars(optimizer)
    if "step" in own and not scheduler_has_wrapped(own["step"]):
        raise Uncapturable(f"`step` of {name} was replaced")
    if "zero_grad" in own:
        raise Uncapturable(f"`zero_grad` of {name} was replaced")
    if not is_torchs(kind.step) or not is_bare_zero_grad(optimizer.zero_grad):
        raise Uncapturable(f"`step` or `zero_grad` of the class {name} was replaced")
    if optimizer_hooks(optimizer):
        raise Uncapturable(f"{name} has hooks around its step")
    if getattr(optimizer, "scaler", None) is not None:
        raise Uncapturable("the gradients of the model are scaled")
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            raise Uncapturable(f"{name} is differentiable")
        rule.numbers_of(group)
    return rule


def _sgd(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    state: Tensors,
    numbers: Tensors,
    group: Mapping[str, Any],
) -> None:
    gradient = _decayed(parameter, gradient, numbers, group)
    if group["momentum"] != 0:
        buffer = state["momentum_buffer"]
        buffer.mul_(numbers["momentum"]).add_(gradient * (1 - numbers["dampening"]))
        gradient = gradient + buffer * numbers["momentum"] if group["nesterov"] else buffer
    parameter.sub_(gradient * numbers["lr"])


def _adam(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    state: Tensors,
    numbers: Tensors,
    group: Mapping[str, Any],
) -> None:
    lr, beta1, beta2 = numbers["lr"], numbers["beta1"], numbers["beta2"]
    state["step"].add_(1)
    if group.get("decoupled_weight_decay"):
        if group["maximize"]:
            gradient = -gradient
        if group["weight_decay"] != 0:
            parameter.mul_(1 - lr * numbers["weight_decay"])
    else:
        gradient = _decayed(parameter, gradient, numbers, group)
    average, square = state["exp_avg"], state["exp_avg_sq"]
    average.add_((gradient - average) * (1 - beta1))
    square.mul_(beta2).add_(gradient * gradient * (1 - beta2))
    # as torch does it: in Python's own numbers
    steps = state["step"].double()
    step_size = lr / (1 - beta1**steps)
    correction = (1 - beta2**steps).sqrt()
    if group["amsgrad"]:
        largest = state["max_exp_avg_sq"]
        largest.copy_(torch.maximum(largest, square))
        square = largest
    parameter.sub_(average / (square.sqrt() / correction + numbers["eps"]) * step_size)


def _rmsprop(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    state: Tensors,
    numbers: Tensors,
    group: Mapping[str, Any],
) -> None:
    state["step"].add_(1)
    gradient = _decayed(parameter, gradient, numbers, group)
    alpha, square = numbers["alpha"], state["square_avg"]
    square.mul_(alpha).add_(gradient * gradient * (1 - alpha))
    if group["centered"]:
        average = state["grad_avg"]
        average.add_((gradient - average) * (1 - alpha))
        root = (square - average * average).sqrt()
    else:
        root = square.sqrt()
    root = root + numbers["eps"]
    if group["momentum"] > 0:
        buffer = state["momentum_buffer"]
        buffer.mul_(numbers["momentum"]).add_(gradient / root)
        parameter.sub_(buffer * numbers["lr"])
    else:
        parameter.sub_(gradient / root * numbers["lr"])


def _adagrad(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    state: Tensors,
    numbers: Tensors,
    group: Mapping[str, Any],
) -> None:
    state["step"].add_(1)
    gradient = _decayed(parameter, gradient, numbers, group)
    rate = numbers["lr"] / (1 + (state["step"].double() - 1) * numbers["lr_decay"])
    total = state["sum"]
    total.add_(gradient * gradient)
    parameter.sub_(gradient / (total.sqrt() + numbers["eps"]) * rate)


def _decayed(
    parameter: torch.Tensor, gradient: torch.Tensor, numbers: Tensors, group: Mapping[str, Any]
) -> torch.Tensor:
    if group["maximize"]:
        gradient = -gradient
    if group["weight_decay"] != 0:
        gradient = gradient + parameter * numbers["weight_decay"]
    return gradient


def _of_sgd(group: Mapping[str, Any]) -> Sequence[str]:
    return ("momentum_buffer",) if group["momentum"] != 0 else ()


def _of_adam(group: Mapping[str, Any]) -> Sequence[str]:
    most = ("max_exp_avg_sq",) if group["amsgrad"] else ()
    return ("step", "exp_avg", "exp_avg_sq", *most)


def _of_rmsprop(group: Mapping[str, Any]) -> Sequence[str]:
    average = ("grad_avg",) if group["centered"] else ()
    momentum = ("momentum_buffer",) if group["momentum"] > 0 else ()
    return ("step", "square_avg", *average, *momentum)


def _of_adagrad(group: Mapping[str, Any]) -> Sequence[str]:
    return ("step", "sum")


_OF_ADAM = ("lr", "beta1", "beta2", "eps", "weight_decay")
_RULES = (
    Rule(torch.optim.SGD, ("lr", "momentum", "dampening", "weight_decay"), _sgd, _of_sgd),
    Rule(torch.optim.Adam, _OF_ADAM, _adam, _of_adam),
    Rule(torch.optim.AdamW, _OF_ADAM, _adam, _of_adam),
    Rule(
        torch.optim.RMSprop,
        ("lr", "alpha", "eps", "weight_decay", "momentum"),
        _rmsprop,
        _of_rmsprop,
    ),
    Rule(torch.optim.Adagrad, ("lr", "lr_decay", "weight_decay", "eps"), _adagrad, _of_adagrad),
)
