"""The loop by hand with parts of it compiled by `torch.compile`, as people write it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from bench.program import Program
from bench.workloads.compiled import Chain, Compiled
from bench.workloads.workload import Workload

Step = Callable[[Any], Any]


def available() -> bool:
    """Return whether there is a C++ compiler, which Inductor needs."""
    return shutil.which(os.environ.get("CXX", "g++")) is not None


def make(
    workload: Workload, of_model: bool = False, of_update: bool = False, of_step: bool = False
) -> Program | None:
    """Return the loop by hand with some of its functions compiled, or None for other workloads.

    Args:
        workload: What to do.
        of_model: Whether the model is compiled, or the chain.
        of_update: Whether the optimizer's step is.
        of_step: Whether the whole step is.
    """
    match workload:
        case Compiled(training=True):
            return _train(workload, of_model, of_update, of_step)
        case Compiled() if not of_update:
            return _infer(workload, of_step)
        case Chain() if not of_update:
            return _chain(workload, of_step)
    return None


def _train(workload: Compiled, of_model: bool, of_update: bool, of_step: bool) -> Program:
    model = workload.model()
    optimizer = workload.optimizer(model)
    predict: Step = torch.compile(model) if of_model else model
    update: Callable[[], Any] = torch.compile(optimizer.step) if of_update else optimizer.step

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        pred = predict(batch["x"])
        loss = F.cross_entropy(pred, batch["y"])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        update()
        return {**batch, "pred": pred.detach(), "loss": loss.detach()}

    return Program(torch.compile(step) if of_step else step, workload.batch(), model=model)


def _infer(workload: Compiled, of_step: bool) -> Program:
    model = workload.model()
    predict: Step = model if of_step else torch.compile(model)

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            return {**batch, "pred": predict(batch["x"])}

    return Program(torch.compile(step) if of_step else step, workload.batch())


def _chain(workload: Chain, of_step: bool) -> Program:
    functions = workload.functions()
    last = workload.keys[-1]

    def chain(value: torch.Tensor) -> torch.Tensor:
        for function in functions:
            value = function(value)
        return value

    run: Step = chain if of_step else torch.compile(chain)

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            return {**batch, last: run(batch["k0"])}

    return Program(torch.compile(step) if of_step else step, workload.batch())
