"""The loops that hand-written programs and wrapped models share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from bench.program import Program
from bench.workloads.nests import Nest
from bench.workloads.torch_models import Supervised

Step = Callable[[dict[str, Any]], dict[str, Any]]


def backward(loss: torch.Tensor) -> None:
    """Compute gradients of a loss."""
    loss.backward()  # type: ignore[no-untyped-call]


def train_loop(
    model: Any,
    optimizer: Any,
    backward: Callable[[Any], Any] = backward,
    update: Callable[[], Any] | None = None,
) -> Step:
    """Return a train step on one batch; the model was put in train mode when it was made.

    Args:
        model: The model, perhaps wrapped.
        optimizer: The optimizer, perhaps wrapped.
        backward: Computes gradients.
        update: Replaces `optimizer.step`.
    """
    update = update or optimizer.step

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        pred = model(batch["x"])
        loss = F.cross_entropy(pred, batch["y"])
        optimizer.zero_grad()
        backward(loss)
        update()
        return {**batch, "pred": pred.detach(), "loss": loss.detach()}

    return step


def infer_loop(model: Any) -> Step:
    """Return an infer step; the model was put in eval mode when it was made."""

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            return {**batch, "pred": model(batch["x"])}

    return step


def wrapped_loop(
    workload: Supervised, wrap: Callable[..., Any], backward: Callable[[Any], Any]
) -> Program:
    """Return the loop around a model and an optimizer that a library has wrapped."""
    raw = workload.model()
    if not workload.training:
        return Program(infer_loop(wrap(raw)), workload.batch(), model=raw)
    model, optimizer = wrap(raw, workload.optimizer(raw.parameters()))
    return Program(train_loop(model, optimizer, backward), workload.batch(), model=raw)


def nest_map(workload: Nest, map_tensors: Callable[[Any, Callable[[Any], Any]], Any]) -> Program:
    """Return a library's map over the nest, of a nest and a function."""
    return Program(lambda nest: map_tensors(nest, torch.Tensor.detach), workload.nest())
