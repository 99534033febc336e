"""Learning rates of models of any framework."""

from __future__ import annotations

from fastnet.backend.facts import fact, is_built, name_of
from fastnet.backend.models import module_for
from fastnet.types import Model

__all__ = ["get_lr", "set_lr"]


def get_lr(model: Model) -> float:
    """Read the learning rate of a model's current optimizer.

    Args:
        model: A model from `fastnet.build`.

    Returns:
        The rate; of an optimizer with several groups of parameters that of the first, and of one
        with a schedule what the schedule says now.

    Raises:
        AssertionError: If the model does not come from `fastnet.build`.
        ValueError: If it has no optimizer now, or is of no known framework.

    >>> import torch, fastnet
    >>> get_lr(fastnet.build(lambda: torch.nn.Linear(2, 1), optimizer_fn="sgd"))
    0.01
    """
    optimizers = module_for(model, "optimizers")
    require_built(model, "get_lr")
    _require_optimizer(model, "get_lr")
    rate: float = optimizers.get_lr(model)
    return rate


def set_lr(model: Model, lr: float, weight_decay: float | None = None) -> None:
    """Change the learning rate of a model's current optimizer.

    Args:
        model: A model from `fastnet.build`.
        lr: The rate, for all groups of parameters.
        weight_decay: The weight decay, for an optimizer that has one. As None it stays in torch,
            and in TensorFlow changes in proportion to the rate.

    Raises:
        AssertionError: If the model does not come from `fastnet.build`.
        ValueError: If it has no optimizer now, or one whose rate a schedule decides, or none with
            weight decay where one is given, or if the model is of no known framework.

    >>> import torch, fastnet
    >>> model = fastnet.build(lambda: torch.nn.Linear(2, 1), optimizer_fn="sgd")
    >>> set_lr(model, 0.5)
    >>> get_lr(model)
    0.5
    """
    optimizers = module_for(model, "optimizers")
    require_built(model, "set_lr")
    _require_optimizer(model, "set_lr")
    optimizers.set_lr(model, lr, weight_decay)


def require_built(model: Model, function: str) -> None:
    """Check that a model comes from `build`.

    Args:
        model: The model.
        function: Who asks, for the error's text.

    Raises:
        AssertionError: If it does not.
    """
    if not is_built(model):
        raise AssertionError(
            f"{function} takes a model from fastnet.build, but this {type(model).__name__} was not "
            "made by it."
        )


def _require_optimizer(model: Model, function: str) -> None:
    if fact(model, "current_optimizer") is None:
        raise ValueError(
            f"{function} is about an optimizer's learning rate, but model '{name_of(model)}' has "
            "no optimizer now. Give fastnet.build an optimizer_fn."
        )
