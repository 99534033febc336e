"""Learning rates of torch optimizers."""

from __future__ import annotations

import torch

from fastnet.backend.model_metadata import name_of, optimizer_of


def get_lr(model: torch.nn.Module) -> float:
    return float(optimizer_of(model).param_groups[0]["lr"])


def set_lr(model: torch.nn.Module, lr: float, weight_decay: float | None) -> None:
    optimizer = optimizer_of(model)
    groups = optimizer.param_groups
    if weight_decay is not None and not all("weight_decay" in group for group in groups):
        raise ValueError(
            f"A weight decay was given for model '{name_of(model)}', but its optimizer, "
            f"{type(optimizer).__name__}, has none. Leave weight_decay out."
        )
    lr = float(lr)
    for group in groups:
        if isinstance(group["lr"], torch.Tensor):
            # Captured graphs read this tensor, so it must not be replaced.
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr
        if weight_decay is not None:
            group["weight_decay"] = float(weight_decay)
