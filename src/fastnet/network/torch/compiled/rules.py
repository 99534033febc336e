"""The update rules of torch's optimizers, with hyperparameters as tensors.

Torch's own implementations cannot be traced: they read step counts and learning rates as Python
numbers, which become constants of the graph. Tests compare each rule with torch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

Tensors = dict[str, torch.Tensor]

# From this number of elements on, computing powers beforehand saves several times what it costs.
_LARGE = 4096


class Group(NamedTuple):
    """The settings of a parameter group that an update uses.

    Attributes:
        numbers: Its numeric settings, each a 0-d float64 tensor.
        settings: Its constant settings, and for each number but the rate its sign (-1, 0 or 1),
            because torch leaves out a weight decay or momentum of 0.
        dtype: The dtype of the first parameter with a gradient.
    """

    numbers: Tensors
    settings: Mapping[str, Any]
    dtype: torch.dtype


UpdateRule = Callable[[torch.Tensor, torch.Tensor, Tensors, Group], None]
"""Updates a parameter and its state in place, from its gradient and its group."""


def sgd(parameter: torch.Tensor, gradient: torch.Tensor, state: Tensors, group: Group) -> None:
    """Update as `torch.optim.SGD`."""
    numbers, settings = group.numbers, group.settings
    gradient = _apply_weight_decay(parameter, gradient, group)
    if settings["momentum"] != 0:
        buffer = state["momentum_buffer"]
        buffer.mul_(numbers["momentum"]).add_(gradient * (1 - numbers["dampening"]))
        gradient = gradient + buffer * numbers["momentum"] if settings["nesterov"] else buffer
    parameter.sub_(gradient * numbers["lr"])


def adam(parameter: torch.Tensor, gradient: torch.Tensor, state: Tensors, group: Group) -> None:
    """Update as `torch.optim.Adam` and `AdamW`."""
    numbers = group.numbers
    gradient = _apply_weight_decay(parameter, gradient, group)
    square = _update_moments(state, gradient, numbers)
    # As in torch, in float64.
    steps = _increment_step(state)
    power1, power2 = _powers_of_betas(numbers, steps, parameter)
    step_size = numbers["lr"] / (1 - power1)
    correction = (1 - power2).sqrt()
    if group.settings["amsgrad"]:
        largest = state["max_exp_avg_sq"]
        largest.copy_(torch.maximum(largest, square))
        square = largest
    parameter.sub_(state["exp_avg"] * step_size / (square.sqrt() / correction + numbers["eps"]))


def nadam(parameter: torch.Tensor, gradient: torch.Tensor, state: Tensors, group: Group) -> None:
    """Update as `torch.optim.NAdam`."""
    numbers = group.numbers
    lr, decay, steps = numbers["lr"], numbers["momentum_decay"], _increment_step(state)
    gradient = _apply_weight_decay(parameter, gradient, group)
    square = _update_moments(state, gradient, numbers)
    mu = numbers["beta1"] * (1 - 0.5 * 0.96 ** (steps * decay))
    mu_next = numbers["beta1"] * (1 - 0.5 * 0.96 ** ((steps + 1) * decay))
    product = state["mu_product"]
    product.mul_(mu)
    root = (square / (1 - numbers["beta2"] ** steps)).sqrt() + numbers["eps"]
    parameter.sub_(gradient * (lr * (1 - mu) / (1 - product.double())) / root)
    parameter.sub_(state["exp_avg"] * (lr * mu_next / (1 - product.double() * mu_next)) / root)


def radam(parameter: torch.Tensor, gradient: torch.Tensor, state: Tensors, group: Group) -> None:
    """Update as `torch.optim.RAdam`."""
    numbers = group.numbers
    steps = _increment_step(state)
    gradient = _apply_weight_decay(parameter, gradient, group)
    square = _update_moments(state, gradient, numbers)
    power1, power2 = _powers_of_betas(numbers, steps, parameter)
    correction = 1 - power2
    rho_inf = 2 / (1 - numbers["beta2"]) - 1
    rho = rho_inf - 2 * steps * power2 / correction
    rect = (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)
    adapted = correction.sqrt() / (square.sqrt() + numbers["eps"]) * rect.sqrt()
    step = state["exp_avg"] / (1 - power1) * numbers["lr"]
    parameter.sub_(torch.where(rho > 5, step * adapted, step))


def adamax(parameter: torch.Tensor, gradient: torch.Tensor, state: Tensors, group: Group) -> None:
    """Update as `torch.optim.Adamax`."""
    numbers, steps = group.numbers, _increment_step(state)
    gradient = _apply_weight_decay(parameter, gradient, group)
    average, largest = state["exp_avg"], state["exp_inf"]
    _update_average(average, gradient, 1 - numbers["beta1"])
    largest.copy_(torch.maximum(largest * numbers["beta2"], gradient.abs() + numbers["eps"]))
    parameter.sub_(average * (numbers["lr"] / (1 - numbers["beta1"] ** steps)) / largest)


def adadelta(parameter: torch.Tensor, gradient: torch.Tensor, state: Tensors, group: Group) -> None:
    """Update as `torch.optim.Adadelta`."""
    numbers = group.numbers
    _increment_step(state)
    gradient = _apply_weight_decay(parameter, gradient, group)
    rho, square, total = numbers["rho"], state["square_avg"], state["acc_delta"]
    square.mul_(rho).add_(_product(gradient, gradient, 1 - rho))
    root = (square + numbers["eps"]).sqrt()
    change = (total + numbers["eps"]).sqrt() / root * gradient
    total.mul_(rho).add_(_product(change, change, 1 - rho))
    parameter.sub_(change * numbers["lr"])


def rmsprop(parameter: torch.Tensor, gradient: torch.Tensor, state: Tensors, group: Group) -> None:
    """Update as `torch.optim.RMSprop`."""
    numbers, settings = group.numbers, group.settings
    _increment_step(state)
    gradient = _apply_weight_decay(parameter, gradient, group)
    alpha, square = numbers["alpha"], state["square_avg"]
    square.mul_(alpha).add_(_product(gradient, gradient, 1 - alpha))
    if settings["centered"]:
        average = state["grad_avg"]
        _update_average(average, gradient, 1 - alpha)
        root = (square - average * average).sqrt()
    else:
        root = square.sqrt()
    root = root + numbers["eps"]
    if settings["momentum"] > 0:
        buffer = state["momentum_buffer"]
        buffer.mul_(numbers["momentum"]).add_(gradient / root)
        parameter.sub_(buffer * numbers["lr"])
    else:
        parameter.sub_(gradient * numbers["lr"] / root)


def adagrad(parameter: torch.Tensor, gradient: torch.Tensor, state: Tensors, group: Group) -> None:
    """Update as `torch.optim.Adagrad`."""
    numbers = group.numbers
    gradient = _apply_weight_decay(parameter, gradient, group)
    rate = numbers["lr"] / (1 + (_increment_step(state) - 1) * numbers["lr_decay"])
    total = state["sum"]
    total.add_(gradient * gradient)
    parameter.sub_(gradient * rate / (total.sqrt() + numbers["eps"]))


def asgd(parameter: torch.Tensor, gradient: torch.Tensor, state: Tensors, group: Group) -> None:
    """Update as `torch.optim.ASGD`."""
    numbers, steps = group.numbers, _increment_step(state)
    gradient = _apply_weight_decay(parameter, gradient, group)
    mu, eta, average = state["mu"], state["eta"].double(), state["ax"]
    parameter.mul_(1 - numbers["lambd"] * eta)
    parameter.sub_(gradient * eta)
    moved = average + (parameter - average) * mu
    average.copy_(torch.where(mu == 1, parameter, moved))
    lr = numbers["lr"]
    state["eta"].copy_(lr / (1 + numbers["lambd"] * lr * steps) ** numbers["alpha"])
    mu.copy_(1 / (steps - numbers["t0"]).clamp(min=1))


def rprop(parameter: torch.Tensor, gradient: torch.Tensor, state: Tensors, group: Group) -> None:
    """Update as `torch.optim.Rprop`."""
    _increment_step(state)
    if group.settings["maximize"]:
        gradient = -gradient
    eta_minus, eta_plus = group.settings["etas"]
    sign = (gradient * state["prev"]).sign()
    factor = torch.where(sign == 0, torch.ones_like(sign), sign)
    factor = torch.where(sign > 0, torch.full_like(sign, eta_plus), factor)
    factor = torch.where(sign < 0, torch.full_like(sign, eta_minus), factor)
    size = state["step_size"]
    size.mul_(factor).clamp_(*group.settings["step_sizes"])
    gradient = torch.where(sign < 0, torch.zeros_like(gradient), gradient)
    parameter.sub_(gradient.sign() * size)
    state["prev"].copy_(gradient)


def adafactor(
    parameter: torch.Tensor, gradient: torch.Tensor, state: Tensors, group: Group
) -> None:
    """Update as `torch.optim.Adafactor`."""
    numbers, settings = group.numbers, group.settings
    steps, lr = _increment_step(state), numbers["lr"]
    eps1, eps2 = settings["eps"]
    if eps1 is None:
        eps1 = torch.finfo(group.dtype).eps
    if settings["maximize"]:
        gradient = -gradient
    weight = steps ** numbers["beta2_decay"]
    scale = (parameter.norm(2).double() / math.sqrt(parameter.numel())).clamp(min=eps2)
    rate = scale * torch.minimum(lr, 1 / steps.sqrt())
    if settings["weight_decay"] != 0:
        parameter.mul_(1 - lr * numbers["weight_decay"])
    if gradient.dim() > 1:
        rows, columns = state["row_var"], state["col_var"]
        for average, axis in ((rows, -1), (columns, -2)):
            norm = torch.norm(gradient, dim=axis, keepdim=True)
            _update_average(average, norm * norm / gradient.size(axis), weight)
        estimate = rows @ columns / rows.mean(dim=-2, keepdim=True).clamp(min=eps1)
    else:
        _update_average(state["variance"], gradient * gradient, weight)
        estimate = state["variance"]
    update = estimate.clamp(min=eps1 * eps1).rsqrt() * gradient
    limit = numbers["d"] * math.sqrt(update.numel())
    parameter.sub_(update * (rate / (update.norm(2).double() / limit).clamp(min=1)))


def muon(parameter: torch.Tensor, gradient: torch.Tensor, state: Tensors, group: Group) -> None:
    """Update as `torch.optim.Muon`."""
    numbers, settings = group.numbers, group.settings
    momentum, buffer = numbers["momentum"], state["momentum_buffer"]
    _update_average(buffer, gradient, 1 - momentum)
    update = _lerp(gradient, buffer, momentum) if settings["nesterov"] else buffer
    rows, columns = parameter.shape
    matrix = update.bfloat16()
    if rows > columns:
        matrix = matrix.T
    matrix = matrix / matrix.norm().clamp(min=settings["eps"])
    a, b, c = settings["ns_coefficients"]
    for _ in range(settings["ns_steps"]):
        gram = matrix @ matrix.T
        gram_update = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        matrix = torch.addmm(matrix, gram_update, matrix, beta=a)
    if rows > columns:
        matrix = matrix.T
    ratio = 1.0
    if settings["adjust_lr_fn"] in (None, "original"):
        ratio = math.sqrt(max(1, rows / columns))
    elif settings["adjust_lr_fn"] == "match_rms_adamw":
        ratio = 0.2 * math.sqrt(max(rows, columns))
    parameter.mul_(1 - numbers["lr"] * numbers["weight_decay"])
    parameter.sub_(matrix.to(parameter.dtype) * (numbers["lr"] * ratio))


def _apply_weight_decay(
    parameter: torch.Tensor, gradient: torch.Tensor, group: Group
) -> torch.Tensor:
    """Apply weight decay to the returned gradient, or if it is decoupled, to the parameter."""
    numbers, settings = group.numbers, group.settings
    if settings["maximize"]:
        gradient = -gradient
    if settings["weight_decay"] != 0:
        if settings.get("decoupled_weight_decay"):
            parameter.mul_(1 - numbers["lr"] * numbers["weight_decay"])
        else:
            gradient = gradient + parameter * numbers["weight_decay"]
    return gradient


def _increment_step(state: Tensors) -> torch.Tensor:
    """Increment the step count; return it as float64."""
    state["step"].add_(1)
    return state["step"].double()


def _update_moments(state: Tensors, gradient: torch.Tensor, numbers: Tensors) -> torch.Tensor:
    """Update the moment estimates of Adam and its variants; return the second."""
    beta2, square = numbers["beta2"], state["exp_avg_sq"]
    _update_average(state["exp_avg"], gradient, 1 - numbers["beta1"])
    square.mul_(beta2).add_(_product(gradient, gradient, 1 - beta2))
    return square


def _powers_of_betas(
    numbers: Tensors, steps: torch.Tensor, parameter: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return both betas to the power of the number of steps.

    For the CPU, Inductor's loop over the elements of a parameter computes powers again and again.
    An exponential that has two users it computes once, before the loop, which pays for large ones.
    """
    beta1, beta2 = numbers["beta1"], numbers["beta2"]
    if parameter.numel() < _LARGE or parameter.device.type != "cpu":
        return beta1**steps, beta2**steps
    return (torch.stack((beta1, beta2)).log() * steps).exp().unbind()


def _product(left: torch.Tensor, right: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Multiply in torch's order, to overflow where torch does."""
    return left * factor * right


def _lerp(start: torch.Tensor, end: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Interpolate between two tensors; a weight of 1 gives the end bit for bit."""
    # As in torch, half-precision values are rounded only once, at the end.
    dtype = torch.promote_types(start.dtype, torch.float32)
    return torch.lerp(start.to(dtype), end.to(dtype), weight.to(dtype)).to(start.dtype)


def _update_average(average: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> None:
    average.copy_(_lerp(average, target, weight))
